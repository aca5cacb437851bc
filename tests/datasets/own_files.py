"""Files as users bring them: arrays, tables, and arrays with one bad entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

X = np.arange(40, dtype=np.float64).reshape(20, 2)
Y = np.arange(20) % 2


def npz_file(path: Path, **arrays: Any) -> Path:
    """Arrays under their names in one file."""
    np.savez(path, **arrays)
    return path


def text_file(path: Path, text: str) -> Path:
    """A table of text."""
    path.write_text(text, encoding="utf-8")
    return path


def parquet_file(path: Path, **columns: Any) -> Path:
    """A table with types."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def changed(array: Any, place: Any, value: Any) -> Any:
    """The array with another value in one place."""
    copy = array.copy()
    copy[place] = value
    return copy
