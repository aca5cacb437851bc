"""Deleting what a program wrote into a folder, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path


def files_below(folder: Path) -> Iterator[Path]:
    """Everything in a folder that is no folder itself, by relative path; links are not followed."""
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            yield from (Path(entry.name) / path for path in files_below(entry))
        else:
            yield Path(entry.name)


def remove_named(folder: Path, names: Collection[str], last: Sequence[str] = ()) -> list[str]:
    """Delete the files of a folder that have one of these names, then empty folders. What is left, by name.

    Those named in `last` go in this order after all others, when nothing else is left to be deleted.
    """
    found = {path.as_posix() for path in files_below(folder)}
    left = found - set(names)
    for name in sorted(found & set(names) - set(last)):
        (folder / name).unlink()
    remove_empty_below(folder)
    for name in last:
        if name in found and name in names:
            (folder / name).unlink()
    with contextlib.suppress(OSError):  # not empty
        folder.rmdir()
    return sorted(left)


def remove_empty_below(folder: Path) -> None:
    """Remove empty folders in a folder."""
    folders = [entry for entry in folder.rglob("*") if entry.is_dir() and not entry.is_symlink()]
    for empty in sorted(folders, reverse=True):
        with contextlib.suppress(OSError):  # not empty
            empty.rmdir()
