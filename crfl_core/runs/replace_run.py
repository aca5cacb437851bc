"""Claim of a run's path: resume, refuse or replace what is there, and lose nothing that a user has.

With `--force` an existing run is set aside as `<name>.previous`, and deleted when the new one is finished. Only files
that the old run wrote are deleted; others stay in `<name>.kept-1`. A replacement that never got finished is discarded
when it is replaced itself.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import warnings
from pathlib import Path

from crfl_core.errors import CrflWarning, StoreError
from crfl_core.files.atomic_files import explain_os_errors, remove_abandoned_folders, rename_folder, replace_file
from crfl_core.runs.recorded_directory import FINISHED, MANIFEST, MARKER, REPLACED, STATUS, files_below
from crfl_core.runs.run_directory import CONFIG, RunDirectory, scratch_prefix

LAST_FILES = (MANIFEST, STATUS, CONFIG, MARKER, REPLACED)
"""Files of a run that are deleted last, in this order."""


def claim_path(path: Path, config: str, *, force: bool) -> RunDirectory | None:
    """Return the unfinished directory to resume in.

    None if a new one may be created. `config` is the config of the new run, as TOML. Raises `StoreError` rather than
    overwrite anything; with `force` an existing run is set aside.
    """
    with explain_os_errors(f"{path}: cannot be used as --out"):
        if path.exists() and Path.cwd().is_relative_to(path.resolve()):
            raise StoreError(f"{path}: is the current directory, or holds it: give --out the name of a new one")
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return None
    directory = RunDirectory(path)
    if not directory.has_marker:
        raise StoreError(f"{path}: exists but is not a run directory: choose another --out")
    clean_up(directory)
    if force:
        set_aside(directory)
        return None
    if directory.state == "finished":
        raise StoreError(
            f"{path}: holds a finished run: see it with `crfl show {path}`, choose another --out, or replace it "
            "with --force"
        )
    if not directory.has_config(config):
        raise StoreError(
            f"{path}: holds an unfinished run with another config: resume it with `crfl run {path}`, choose another "
            "--out, or replace it with --force"
        )
    return directory


def set_aside(directory: RunDirectory) -> None:
    """Move a run out of the way of a new one.

    A finished run becomes `<name>.previous`. A replacement that never got finished is discarded, and the run that it
    was to replace stays. The directory is marked before it is moved, so that `clean_up` finds it after a kill.
    """
    path = directory.path
    previous = previous_path(path)
    with directory.lock(), explain_os_errors(f"{path}: cannot be replaced"):
        if path.is_symlink():
            raise StoreError(f"{path}: is a link to {path.readlink()}: --force replaces a directory, not a link to one")
        if previous.exists() and not is_finished(directory):
            replace_file(path / REPLACED, b"")
            rename_folder(path, path.with_name(f"{prefix_of_discarded_runs(path)}{secrets.token_hex(4)}"))
        else:
            delete_run_files(RunDirectory(previous), path)
            if previous.exists():
                raise StoreError(f"{previous}: is in the way, --force keeps the old run there: move or remove it")
            replace_file(path / REPLACED, b"")
            rename_folder(path, previous)
    clean_up(directory)


def clean_up(directory: RunDirectory) -> None:
    """Delete what killed processes left beside a run.

    If the run is finished, delete the run that it replaced, too.
    """
    path = directory.path
    remove_abandoned_folders(path.parent, scratch_prefix(path))
    with contextlib.suppress(FileNotFoundError):
        prefixes = (prefix_of_discarded_runs(path), prefix_of_kept_files(path))
        beside = [entry for entry in path.parent.iterdir() if entry.name.startswith(prefixes)]
        if is_finished(directory):
            beside.append(previous_path(path))
        for entry in beside:
            delete_run_files(RunDirectory(entry), path)


def delete_run_files(directory: RunDirectory, path: Path) -> None:
    """Delete what a replaced run wrote into its set-aside directory.

    The run was once at `path`. Other files stay, in a directory of another name, and a warning names them. The marks go
    last, and before them the lists of files, so that a later command can continue after a kill.
    """
    if directory.path.is_symlink() or not (directory.path / REPLACED).exists():
        with contextlib.suppress(OSError):  # not empty, or not there: it is not ours
            if not directory.path.name.startswith(prefix_of_kept_files(path)):
                directory.path.rmdir()
        return
    try:
        with directory.lock():
            left, kept = remove_files(directory, path)
    except (StoreError, OSError):  # another process deletes it, or nothing can be written here
        return
    if left:
        named = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
        warnings.warn(f"{kept}: keeps {named}, which the run did not write", CrflWarning, stacklevel=2)


def is_finished(directory: RunDirectory) -> bool:
    """Return whether a run is finished, if its status is readable.

    An unreadable status counts as unfinished.
    """
    try:
        return bool(directory.status["state"] == FINISHED)
    except StoreError:
        return False


def previous_path(path: Path) -> Path:
    """Return where the old run stays until the new one finishes."""
    return path.with_name(f"{path.name}.previous")


def prefix_of_discarded_runs(path: Path) -> str:
    """Return how the names of discarded replacements begin."""
    return f"{path.name}.discarded-"


def prefix_of_kept_files(path: Path) -> str:
    """Return the prefix of directories with the files that stay.

    Replaced runs did not write these files.
    """
    return f"{path.name}.kept-"


def remove_files(directory: RunDirectory, path: Path) -> tuple[list[str], Path]:
    """Delete the files of a run.

    Return the files that stay, and where they are.
    """
    folder = directory.path
    names = directory.list_deletable_files()
    found = {file.as_posix() for file in files_below(folder)}
    for name in sorted(found & names - set(LAST_FILES)):
        (folder / name).unlink()
    remove_empty_folders(folder)
    left = sorted(found - names)
    if left and not folder.name.startswith(prefix_of_kept_files(path)):
        numbers = (path.with_name(f"{prefix_of_kept_files(path)}{number}") for number in itertools.count(1))
        folder = next(place for place in numbers if not place.exists())
        rename_folder(directory.path, folder)
    for name in LAST_FILES:
        if name in found:
            (folder / name).unlink()
    with contextlib.suppress(OSError):  # not empty
        folder.rmdir()
    return left, folder


def remove_empty_folders(folder: Path) -> None:
    """Remove the empty folders in a folder."""
    folders = [entry for entry in folder.rglob("*") if entry.is_dir() and not entry.is_symlink()]
    for empty in sorted(folders, reverse=True):
        with contextlib.suppress(OSError):  # not empty
            empty.rmdir()
