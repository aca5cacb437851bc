"""The folder of a sweep: what it is, the run directories of its cells, and notes about each of them.

sweep.toml       the config with its [sweep] table: what the sweep is
crfl.json        says that this is the folder of a sweep
cells/<name>/    a run directory for every cell, like any other
notes/<name>.json  how a cell ended: finished or failed, why, how long it took, what it took from another cell
sweep.csv, sweep.parquet   all numbers of all finished cells, in long form
workers.log      what plugins print and warn

Nothing here needs a lock: every file is replaced as a whole, and each run directory has a lock of its own. Readers find
a complete table at any time.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tomli_w

from crfl_core.errors import StoreError
from crfl_core.runs.recorded_directory import RecordedDirectory
from crfl_experiments.sweeps.cells import SWEEP, Definition

DEFINITION = "sweep.toml"
State = Literal["waiting", "finished", "failed"]


class Note(NamedTuple):
    """End of a cell."""

    state: State
    reason: str = ""
    seconds: float = 0.0
    shares: str = "nothing"


class SweepFolder(RecordedDirectory):
    """Files of one sweep."""

    kind = "sweep of crfl"

    @classmethod
    def open_or_create(cls, path: Path, definition: Definition) -> SweepFolder:
        """Create the folder of a sweep, or open it to resume.

        Raises `StoreError` if the folder holds another sweep.
        """
        folder = cls(path)
        text = sweep_file_text(definition)
        if path.exists() and not path.is_dir():
            raise StoreError(f"{path}: is a file: choose another --out")
        if not path.exists() or not any(path.iterdir()):
            folder.write(DEFINITION, text)
            folder.write_marker()
            return folder
        if not folder.has_marker:
            raise StoreError(f"{path}: exists but is not a sweep folder: choose another --out")
        if sweep_file_text(folder.definition) != text:
            raise StoreError(
                f"{path}: holds another sweep: continue that one with `crfl sweep {path}`, or choose another --out"
            )
        return folder

    @classmethod
    def open(cls, path: Path) -> SweepFolder:
        """Open the folder of a sweep.

        Raises `StoreError` if the folder does not hold one.
        """
        folder = cls(path)
        if not folder.has_marker:
            raise StoreError(f"{path}: no folder of a sweep: give the path that `crfl sweep` printed")
        return folder

    @property
    def definition(self) -> Definition:
        """Return the definition of the sweep."""
        try:
            tree = tomllib.loads(self.read_unverified(DEFINITION).decode())
        except ValueError as error:
            raise self.damage_error(DEFINITION, error) from error
        return Definition(tree, tree.pop(SWEEP, {}), str(self.path / DEFINITION))

    def cell(self, name: str) -> Path:
        """Return the run directory of a cell."""
        return self.path / "cells" / name

    def note(self, name: str) -> Note:
        """Read how a cell ended.

        A cell whose note is missing, unreadable or waiting counts as finished if its run is finished.
        """
        try:
            note = Note(**json.loads((self.path / "notes" / f"{name}.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            note = Note("waiting")
        return note if note.state != "waiting" or not self.is_finished(name) else Note("finished")

    def is_finished(self, name: str) -> bool:
        """Return whether the run of a cell is finished."""
        try:
            return bool(json.loads((self.cell(name) / "status.json").read_bytes())["state"] == "finished")
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def write_note(self, name: str, note: Note) -> None:
        """Write how a cell ended."""
        self.write_json(f"notes/{name}.json", note._asdict())


def sweep_file_text(definition: Definition) -> bytes:
    """Return the content of sweep.toml."""
    tree = {key: value for key, value in definition.tree.items() if key != SWEEP}
    return tomli_w.dumps(without_none({**tree, SWEEP: dict(definition.table)})).encode()


def without_none(value: Any) -> Any:
    """Return a value without None, which TOML cannot write."""
    if isinstance(value, dict):
        return {key: without_none(one) for key, one in value.items() if one is not None}
    return [without_none(one) for one in value] if isinstance(value, list | tuple) else value
