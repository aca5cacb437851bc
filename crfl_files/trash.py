"""Deleting what a program wrote into a folder, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path


def files_below(folder: Path) -> Iterator[Path]:
    """Everything in a folder that is no folder itself, by relative path; links are not followed."""
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            yield from (Path(entry.name) / path for path in files_below(entry))
        else:
            yield Path(entry.name)


def remove_own(folder: Path, patterns: Iterable[str], names: Collection[str] = ()) -> list[str]:
    """Delete the files of a folder that match a pattern or have a name, then empty folders. What is left, by name."""
    shapes = [(pattern, pattern.count("/") + 1) for pattern in patterns]
    left = []
    for path in list(files_below(folder)):
        if path.as_posix() in names or any(len(path.parts) == n and path.match(pattern) for pattern, n in shapes):
            (folder / path).unlink()
        else:
            left.append(path.as_posix())
    folders = [entry for entry in folder.rglob("*") if entry.is_dir() and not entry.is_symlink()]
    for empty in (*sorted(folders, reverse=True), folder):
        with contextlib.suppress(OSError):  # not empty
            empty.rmdir()
    return left
