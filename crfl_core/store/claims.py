"""Which directory a run may write to. Nothing that exists is overwritten by accident."""

from __future__ import annotations

import shutil
from pathlib import Path

from crfl_core.store.directory import RunDirectory
from crfl_interface.errors import StoreError

REPLACED = ".replaced"
"""Marks a run that `--force` set aside."""


def claim(path: Path, config: str, *, force: bool) -> RunDirectory | None:
    """The unfinished directory to resume in, or None if a new one may be created. Raises rather than overwrite.

    With `force` an existing run is set aside as `<name>.previous` until the new one is finished.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return None
    directory = RunDirectory(path)
    if not (path / "status.json").exists():
        raise StoreError(f"{path}: exists and is no run directory: choose another --out")
    if force:
        with directory.locked():
            set_aside(directory)
        return None
    if directory.state == "finished":
        raise StoreError(
            f"{path}: holds a finished run: see it with `crfl show {path}`, choose another --out, or replace it "
            "with --force"
        )
    if not directory.same_config(config):
        raise StoreError(
            f"{path}: holds an unfinished run with another config: resume it with `crfl resume {path}`, choose another "
            "--out, or replace it with --force"
        )
    return directory


def set_aside(directory: RunDirectory) -> None:
    """Make room for a new run. A replacement that never got finished goes; what it was to replace stays."""
    previous = previous_of(directory.path)
    if previous.exists() and not is_finished(directory):
        shutil.rmtree(directory.path)
    else:
        remove_previous(directory.path)
        if previous.exists():
            raise StoreError(f"{previous}: is in the way, --force keeps the old run there: move or remove it")
        directory.path.rename(previous)
        (previous / REPLACED).touch()


def is_finished(directory: RunDirectory) -> bool:
    """Whether a run is finished, as far as its damaged or foreign status can be read."""
    try:
        return directory.state == "finished"
    except StoreError:
        return False


def previous_of(path: Path) -> Path:
    """Where `--force` keeps the old run until the new one is finished."""
    return path.with_name(f"{path.name}.previous")


def remove_previous(path: Path) -> None:
    """The new run is finished: the one that it replaced can go, but nothing else of that name."""
    if (previous_of(path) / REPLACED).exists():
        shutil.rmtree(previous_of(path))
