"""Deleting what a program wrote into a folder, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path


def files_below(folder: Path) -> Iterator[Path]:
    """Everything in a folder that is no folder itself, by relative path; links are not followed."""
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            yield from (Path(entry.name) / path for path in files_below(entry))
        else:
            yield Path(entry.name)


def remove_named(folder: Path, names: Collection[str]) -> list[str]:
    """Delete the files of a folder that have one of these names, then empty folders. What is left, by name."""
    left = []
    for path in list(files_below(folder)):
        if path.as_posix() in names:
            (folder / path).unlink()
        else:
            left.append(path.as_posix())
    folders = [entry for entry in folder.rglob("*") if entry.is_dir() and not entry.is_symlink()]
    for empty in (*sorted(folders, reverse=True), folder):
        with contextlib.suppress(OSError):  # not empty
            empty.rmdir()
    return left
