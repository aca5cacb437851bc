"""One folder in the place of another: the old one is set aside, and deleted when the new one is finished."""

from __future__ import annotations

import contextlib
import secrets
import warnings
from pathlib import Path
from typing import TypeVar

from crfl_core.errors import CrflWarning, StoreError
from crfl_core.files.atomic_files import remove_abandoned
from crfl_core.files.folder import refusals_of_the_system
from crfl_core.files.marked_folder import MARKER, REPLACED, MarkedFolder
from crfl_core.files.recorded_folder import FINISHED, MANIFEST, STATUS
from crfl_core.files.trash import remove_named

Marked = TypeVar("Marked", bound=MarkedFolder)


def new_beside(path: Path) -> str:
    """How the names of folders begin in which a new folder is put together."""
    return f".{path.name}.new-"


def set_aside(folder: Marked) -> None:
    """Make room for a new folder. A replacement that never got finished goes; what it was to replace stays.

    It is marked before it is moved: whatever a kill leaves of it is then known, and deleted by `clean_up`.
    """
    path = folder.path
    previous = previous_of(folder.path)
    with folder.locked(), refusals_of_the_system(f"{path}: cannot be replaced"):
        if path.is_symlink():
            raise StoreError(f"{path}: is a link to {path.readlink()}: --force replaces a directory, not a link to one")
        if previous.exists() and not is_finished(folder):
            (path / REPLACED).touch()
            path.rename(path.with_name(f"{discarded_of(path)}{secrets.token_hex(4)}"))
        else:
            delete(type(folder)(previous))
            if previous.exists():
                raise StoreError(f"{previous}: is in the way, --force keeps the old run there: move or remove it")
            (path / REPLACED).touch()
            path.rename(previous)
    clean_up(folder)


def clean_up(folder: Marked) -> None:
    """Delete what was replaced by a folder that is finished, and what killed processes have left beside it."""
    path = folder.path
    remove_abandoned(path.parent, new_beside(path))
    with contextlib.suppress(FileNotFoundError):
        beside = [entry for entry in path.parent.iterdir() if entry.name.startswith(discarded_of(path))]
        for entry in (*beside, *([previous_of(path)] if is_finished(folder) else ())):
            delete(type(folder)(entry))


def delete(folder: MarkedFolder) -> None:
    """Delete what the work wrote into a folder that was set aside. What others put there stays, and is named.

    The mark goes last, and before it what says which files are to go, so that a kill leaves nothing half-deleted.
    """
    if folder.path.is_symlink() or not (folder.path / REPLACED).exists():
        with contextlib.suppress(OSError):  # not empty, or not there: it is not ours
            folder.path.rmdir()
        return
    try:
        with folder.locked():
            last = (MANIFEST, STATUS, folder.sealed_file, MARKER, REPLACED)
            left = remove_named(folder.path, folder.deletable(), last)
    except (StoreError, OSError):  # another process is at it, or nothing can be written here
        return
    if left:
        named = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
        warnings.warn(f"{folder.path}: keeps {named}, which the run did not write", CrflWarning, stacklevel=2)


def is_finished(folder: MarkedFolder) -> bool:
    """Whether the work is finished, as far as a damaged or foreign status can be read."""
    try:
        return bool(folder.status["state"] == FINISHED)
    except StoreError:
        return False


def previous_of(path: Path) -> Path:
    """Where the old folder is kept until the new one is finished."""
    return path.with_name(f"{path.name}.previous")


def discarded_of(path: Path) -> str:
    """How the names of replacements begin that never got finished."""
    return f"{path.name}.discarded-"
