"""Which directory a run may write to. Nothing that exists is overwritten by accident."""

from __future__ import annotations

import os
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path

from crfl_core.errors import CrflWarning, StoreError
from crfl_core.store.directory import CONFIG, REPLACED, RunDirectory
from crfl_files.trash import remove_named


def claim(path: Path, config: str, *, force: bool) -> RunDirectory | None:
    """The unfinished directory to resume in, or None if a new one may be created. Raises rather than overwrite.

    With `force` an existing run is set aside as `<name>.previous` until the new one is finished.
    """
    if path.exists() and Path.cwd().is_relative_to(path.resolve()):
        raise StoreError(f"{path}: is the current directory, or holds it: give --out the name of a new one")
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return None
    directory = RunDirectory(path)
    if not directory.is_marked:
        raise StoreError(f"{path}: exists and is no run directory: choose another --out")
    if force:
        if path.is_symlink():
            raise StoreError(f"{path}: is a link to {path.readlink()}: --force replaces a directory, not a link to one")
        with directory.locked():
            set_aside(directory)
        return None
    if not directory.keeps_record:
        raise StoreError(
            f"{path}: was written in format 1: `crfl upgrade {path}` brings it up to date, --force replaces it"
        )
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
        discarded = directory.path.with_name(f"{directory.path.name}.discarded-{os.getpid()}")
        directory.path.rename(discarded)
        delete(RunDirectory(discarded))
    else:
        remove_previous(directory.path)
        if previous.exists():
            raise StoreError(f"{previous}: is in the way, --force keeps the old run there: move or remove it")
        directory.path.rename(previous)
        (previous / REPLACED).touch()


def delete(directory: RunDirectory) -> None:
    """Delete what a run wrote. What others put beside it stays, and is named."""
    saved = (f"what-if/{run.path.name}/{name}" for run in directory.saved_answers() for name in run.own_files())
    if left := remove_named(directory.path, {*directory.own_files(), *saved, *files_of_trackers(directory)}):
        named = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
        warnings.warn(f"{directory.path}: keeps {named}, which the run did not write", CrflWarning, stacklevel=2)


def files_of_trackers(directory: RunDirectory) -> Iterator[str]:
    """Files that plugins put into a run directory: those that it listed in the end, and those that its config names."""
    try:
        if directory.is_sealed:
            yield from directory.manifest.get("others", ())
        trackers = tomllib.loads(directory.load(CONFIG).decode()).get("trackers", ())
        yield from (str(value) for tracker in trackers for value in tracker.values() if value != tracker["type"])
    except (StoreError, ValueError, TypeError, AttributeError, KeyError):
        return


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
    previous = previous_of(path)
    if not previous.is_symlink() and (previous / REPLACED).exists():
        delete(RunDirectory(previous))
