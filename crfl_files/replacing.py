"""One folder in the place of another: the old one is set aside, and deleted when the new one is finished."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TypeVar

from crfl_files.errors import CrflWarning, StoreError
from crfl_files.folder import refusals_of_the_system
from crfl_files.marked import REPLACED, MarkedFolder
from crfl_files.recorded import FINISHED
from crfl_files.trash import remove_named

Marked = TypeVar("Marked", bound=MarkedFolder)


def set_aside(folder: Marked) -> None:
    """Make room for a new folder. A replacement that never got finished goes; what it was to replace stays."""
    path, previous = folder.path, previous_of(folder.path)
    with refusals_of_the_system(f"{path}: cannot be replaced"):
        if path.is_symlink():
            raise StoreError(f"{path}: is a link to {path.readlink()}: --force replaces a directory, not a link to one")
        if previous.exists() and not is_finished(folder):
            discarded = path.with_name(f"{path.name}.discarded-{os.getpid()}")
            path.rename(discarded)
            delete(type(folder)(discarded))
        else:
            remove_previous(folder)
            if previous.exists():
                raise StoreError(f"{previous}: is in the way, --force keeps the old run there: move or remove it")
            path.rename(previous)
            (previous / REPLACED).touch()


def remove_previous(folder: Marked) -> None:
    """The new folder is finished: the one that it replaced can go, but nothing else of that name."""
    previous = previous_of(folder.path)
    if not previous.is_symlink() and (previous / REPLACED).exists():
        delete(type(folder)(previous))


def delete(folder: MarkedFolder) -> None:
    """Delete what the work wrote. What others put beside it stays, and is named."""
    if left := remove_named(folder.path, folder.deletable()):
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
