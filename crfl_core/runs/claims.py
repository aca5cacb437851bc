"""Which directory a run may write to. Nothing that exists is overwritten by accident."""

from __future__ import annotations

from pathlib import Path

from crfl_core.errors import StoreError
from crfl_core.files.folder import refusals_of_the_system
from crfl_core.files.replace_folder import clean_up, set_aside
from crfl_core.runs.run_directory import RunDirectory


def claim(path: Path, config: str, *, force: bool) -> RunDirectory | None:
    """The unfinished directory to resume in, or None if a new one may be created. Raises rather than overwrite.

    With `force` an existing run is set aside as `<name>.previous` until the new one is finished.
    """
    with refusals_of_the_system(f"{path}: cannot be used as --out"):
        if path.exists() and Path.cwd().is_relative_to(path.resolve()):
            raise StoreError(f"{path}: is the current directory, or holds it: give --out the name of a new one")
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return None
    directory = RunDirectory(path)
    if not directory.is_marked:
        raise StoreError(f"{path}: exists and is no run directory: choose another --out")
    clean_up(directory)
    if force:
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
