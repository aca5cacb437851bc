"""The directory of one run: ledger, checkpoint, model; its votes are in `votes`."""

from __future__ import annotations

import fcntl
import os
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from crfl_core.store.files import Arrays
from crfl_core.store.votes import VoteFiles
from crfl_interface.errors import StoreError
from crfl_interface.ledger import ClientColumns, Ledger, RoundRecord, RunFacts

FORMAT = 1
ROUND = "round"
RunState = Literal["training", "trained", "finished"]


class Checkpoint(NamedTuple):
    """Where training stood: the tensors of the model and the plugins, and the ledger so far."""

    round: int
    tensors: dict[str, NDArray[Any]]
    records: list[RoundRecord]
    clients: list[ClientColumns]


class RunDirectory(VoteFiles):
    """The files of one run. Reading never changes anything; writing needs the lock."""

    @property
    def state(self) -> RunState:
        """How far the run has come."""
        status = self.read_json("status.json")
        if status.get("format") != FORMAT:
            raise StoreError(
                f"{self.path}: written in format {status.get('format')}, this version of crfl reads format {FORMAT}: "
                "use the version that its environment.json names"
            )
        state = status.get("state")
        if state not in get_args(RunState):
            raise self.damaged("status.json", f"there is no state {state!r}")
        return cast("RunState", state)

    def set_state(self, state: RunState) -> None:
        """Record how far the run has come."""
        self.write_json("status.json", {"format": FORMAT, "state": state})

    @classmethod
    def create(cls, path: Path, files: Mapping[str, str]) -> RunDirectory:
        """A new run directory with its first files, there at once or not at all."""
        fresh = cls(path.with_name(f".{path.name}.new-{os.getpid()}"))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh.path.mkdir()
            for name, text in files.items():
                fresh.write(name, text.encode())
            fresh.write("rounds.jsonl", b"")
            fresh.set_state("training")
            if path.exists():
                path.rmdir()  # an empty directory that somebody prepared
            fresh.path.rename(path)
        except OSError as error:
            shutil.rmtree(fresh.path, ignore_errors=True)
            raise StoreError(
                f"{path}: cannot create the run directory: {error.strerror}: choose another --out"
            ) from error
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing here. The lock ends with the process, however it ends."""
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StoreError(f"{self.path}: another process is writing this run: wait for it to end") from None
            yield

    def append_rounds(self, records: Sequence[RoundRecord]) -> None:
        """A round more in rounds.jsonl, a line for each model. What a kill cuts off is cut again on resume."""
        with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write("".join(record.model_dump_json() + "\n" for record in records))

    def write_checkpoint(self, number: int, tensors: Arrays, clients: Sequence[ClientColumns]) -> None:
        """Where training stands; `clients` are the rows since the last checkpoint. The rename makes it count."""
        with (self.path / "rounds.jsonl").open("rb") as file:
            os.fsync(file.fileno())  # the lines up to this round must be on disk before it counts
        if clients:
            self.write_arrays(f"checkpoint/clients-{number:08d}.npz", vars(ClientColumns.concatenate(clients)))
        self.write_tensors("checkpoint/state.safetensors", {ROUND: np.array([number]), **tensors}, {})

    def remove_checkpoint(self) -> None:
        """Training is over."""
        shutil.rmtree(self.path / "checkpoint", ignore_errors=True)

    def read_rounds(self) -> list[RoundRecord]:
        """The complete lines of rounds.jsonl."""
        *lines, _ = self.read("rounds.jsonl").split(b"\n")
        try:
            return [RoundRecord.model_validate_json(line) for line in lines]
        except ValidationError as error:
            raise self.damaged("rounds.jsonl", error.errors(include_url=False)[0]["msg"]) from error

    def read_ledger(self) -> Ledger:
        """The whole ledger of a trained run."""
        facts = self.read_facts("ledger.json", RunFacts)
        arrays = self.read_arrays("clients.npz")
        try:
            clients = ClientColumns(**arrays)
        except TypeError as error:
            raise self.damaged("clients.npz", error) from error
        rounds = tuple(self.read_rounds())
        try:
            return Ledger(facts, rounds, clients)
        except StoreError as error:
            raise StoreError(f"{self.path}: {error}") from error

    def read_checkpoint(self) -> Checkpoint | None:
        """Where training stood; cuts whatever was written after it. None: nothing was saved yet."""
        folder = self.path / "checkpoint"
        if not (folder / "state.safetensors").exists():
            self.write("rounds.jsonl", b"")
            shutil.rmtree(folder, ignore_errors=True)
            return None
        tensors = self.read_tensors("checkpoint/state.safetensors")
        if ROUND not in tensors:
            raise self.damaged("checkpoint/state.safetensors", "it does not say which round it is of")
        number = int(tensors.pop(ROUND)[0])
        models = self.read_facts("ledger.json", RunFacts).models
        records = self.read_rounds()[: number * models]
        clients = []
        for shard in sorted(folder.glob("clients-*.npz")):
            if int(shard.stem.removeprefix("clients-")) > number:
                shard.unlink()
            else:
                clients.append(ClientColumns(**self.read_arrays(f"checkpoint/{shard.name}")))
        covered = {int(number) for part in clients for number in np.unique(part.round)}
        if len(records) != number * models or covered != set(range(1, number + 1)):
            raise StoreError(
                f"{self.path}: the ledger ends before the checkpoint of round {number}: start again with --force"
            )
        lines = b"".join(record.model_dump_json().encode() + b"\n" for record in records)
        self.write("rounds.jsonl", lines)
        return Checkpoint(number, tensors, records, clients)

    def check_facts(self, facts: RunFacts) -> None:
        """Refuse to continue with other data or another model than the run was started with."""
        started_with = self.read_facts("ledger.json", RunFacts)
        changed = [name for name, value in started_with if value != getattr(facts, name)]
        if changed:
            raise StoreError(
                f"{self.path}: the data or the plugins have changed since this run was started, {', '.join(changed)} "
                "differ: restore them, or start again with --force"
            )

    def same_config(self, text: str) -> bool:
        """Whether a config, as TOML, is the one that this run was started with."""
        try:
            return tomllib.loads(self.read("config.toml").decode()) == tomllib.loads(text)
        except ValueError as error:
            raise self.damaged("config.toml", error) from error

    def write_resampled(self, number: int, tensors: Arrays) -> None:
        """The model of a round before noise, and the plugins' states, from which continuations start."""
        self.write_tensors(resampled_file(number), tensors, {})

    def read_resampled(self, number: int) -> dict[str, NDArray[Any]]:
        """Inverse of `write_resampled`."""
        if not (self.path / resampled_file(number)).exists():
            stored = sorted(file.stem.removeprefix("round-") for file in (self.path / "resample").glob("round-*"))
            kept = ", ".join(str(int(number)) for number in stored) or "none"
            raise StoreError(
                f"{self.path}: the model of round {number} was not kept, so noise cannot be drawn again from there: "
                f"kept are {kept}; set resample_from before the run"
            )
        return self.read_tensors(resampled_file(number))


def resampled_file(number: int) -> str:
    """Where the model of a round before noise is kept."""
    return f"resample/round-{number:04d}.safetensors"
