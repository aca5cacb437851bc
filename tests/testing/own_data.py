"""Data of a user's own, as the dataset `arrays` calls for them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from crfl_core.extend import Data
from crfl_core.testing.sample_run import Spots


def spots() -> Data:
    return Spots(samples=100, classes=3).read()


def shared_out(samples: int = 600, clients: int = 7) -> Path:
    """A file that says which client holds which samples."""
    path = Path(tempfile.mkdtemp(prefix="crfl-split-")) / "split.json"
    path.write_text(json.dumps([sample % clients for sample in range(samples)]))
    return path
