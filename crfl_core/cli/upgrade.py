"""`crfl upgrade`: a run of an older version in the format of this one."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated

import typer

from crfl_core.extend import RunArgument

if TYPE_CHECKING:
    from crfl_core.runs.run_directory import RunDirectory

BEFORE_TRAINING = ("config.toml", "ledger.json")
"""What a run writes before its first round."""

RECORDS = ("status.json", "manifest.json")
CHECKPOINT = "checkpoint/state.safetensors"

Mine = Annotated[bool, typer.Option("--trust", help="RUN was made here: its code may run without asking again.")]


def upgrade(run: RunArgument, trust: Mine = False) -> None:
    """Bring RUN, finished or not, into the format of this version: its files are listed as they are now.

    Nothing is computed, and only records are changed. Damage that is there already stays unnoticed.
    """
    from crfl_core.errors import StoreError
    from crfl_core.runs.run_directory import RunDirectory

    directory = RunDirectory(run)
    if directory.keeps_record:
        typer.echo(f"{run}: is up to date, {directory.state}")
        return
    if not directory.is_marked:
        raise StoreError(f"{run}: no run directory: give the path that `crfl run` printed")
    with directory.locked():
        upgraded(directory, mine=trust)
    typer.echo(f"{run}: is up to date now, {len(directory.digests)} files are listed")


def upgraded(directory: RunDirectory, *, mine: bool) -> None:
    """List the files of a run of format 1. The status is written last: a kill before leaves the run as it was."""
    state = directory.state
    if state == "training":
        list_checkpoint(directory)
        directory.digests.clear()
        list_files(directory, BEFORE_TRAINING)
        directory.mark(mine=mine)
        directory.set_state(state)
        return
    directory.read_ledger()  # which says what is wrong with it, if anything is
    list_files(directory, lasting(directory))
    directory.mark(mine=mine)
    if state == "trained":
        directory.set_state(state)
        return
    directory.finish()
    for answer in directory.saved_answers():
        list_files(answer, lasting(answer))
        answer.finish({"run": directory.status["manifest"]})


def lasting(directory: RunDirectory) -> list[str]:
    """The files that stay when a run is finished, without those that are about them."""
    names = [name for name in directory.own_files() if not name.startswith((".", "checkpoint/"))]
    return [name for name in names if name not in RECORDS and "/." not in name]


def list_files(directory: RunDirectory, names: Iterable[str]) -> None:
    """Take files as they are for what the run wrote."""
    directory.digests.update({name: sha256(directory.load(name)).hexdigest() for name in names})


def list_checkpoint(directory: RunDirectory) -> None:
    """Write the digests of everything that a resumed run reads into its checkpoint, if there is one."""
    if not (directory.path / CHECKPOINT).exists():
        return
    tensors = directory.read_tensors(CHECKPOINT)
    number = int(tensors["round"][0])
    until = f"checkpoint/clients-{number:08d}.npz"
    shards = [name for name in directory.own_files() if "checkpoint/clients-" <= name <= until]
    kept = [name for name in directory.own_files() if name.startswith("resample/")]
    list_files(directory, (*BEFORE_TRAINING, *kept, *shards))
    files = {**directory.digests, "rounds.jsonl": sha256(directory.rounds_until(number)).hexdigest()}
    directory.write_tensors(CHECKPOINT, tensors, {"files": files})
