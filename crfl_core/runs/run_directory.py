"""Run directories: plain files, written atomically, resumable, never pickled.

config.toml          the complete config; loads to the same object
environment.json     versions of everything that took part
crfl.json            says that this is a run directory, and which installation made it
status.json          training, trained or finished, and the digests of what was written so far
manifest.json        the SHA-256 of every file of a finished run; its own is in status.json
ledger.json          static facts          rounds.jsonl  one line per round
clients.npz          one row per round and client
checkpoint/          while training: model and plugin states, and the rows of clients.npz so far
features.safetensors what feature maps were fitted to, if any
model.safetensors    the clipped final aggregate, before any test noise
votes/<digest>.npz   one file per vote request
certificates/*.csv   one file per certificate: a row per level, test set and sample
audit.json           every assumption of every certificate
metrics.json         all numbers of the tables, and the classes of every client
figures/             partition.svg and partition.png: the same as a picture
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from crfl_core.errors import StoreError
from crfl_core.files.atomic_files import scratch
from crfl_core.files.folder import refusals_of_the_system
from crfl_core.files.recorded_folder import STATUS
from crfl_core.files.replace_folder import new_beside
from crfl_core.records import ledger_validation as validation
from crfl_core.records.ledger import ClientColumns, Ledger, RoundRecord, RunFacts
from crfl_core.runs.array_files import Arrays
from crfl_core.runs.vote_files import VoteFiles

CONFIG = "config.toml"
ROUNDS = "rounds.jsonl"
ENVIRONMENT = "environment.json"
CHECKPOINT = "checkpoint"
SAVED = f"{CHECKPOINT}/state.safetensors"
SHARD = f"{CHECKPOINT}/clients-"
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

    kind = "run directory of crfl"
    sealed_file = CONFIG
    states = get_args(RunState)
    always = (CONFIG, "ledger.json", ROUNDS)
    patterns = (
        *(
            CONFIG,
            ENVIRONMENT,
            "ledger.json",
            ROUNDS,
            "clients.npz",
            "model.safetensors",
            "features.safetensors",
            "audit.json",
            "metrics.json",
        ),
        *("certificates/*.csv", "figures/partition.*", "votes/*.npz", "votes/seed.json", "resample/*.safetensors"),
        *(f"{SHARD}*.npz", SAVED, "report.html"),
    )
    _lines: Any  # the SHA-256 of rounds.jsonl, as it grows
    _digests_until: dict[int, str]  # the same up to the last two rounds

    @property
    def state(self) -> RunState:
        """How far the run has come."""
        return cast("RunState", self.status["state"])

    def lasting(self) -> dict[str, str]:
        """The files that stay when training is over."""
        return {name: value for name, value in self.digests.items() if not name.startswith(f"{CHECKPOINT}/")}

    def saved_answers(self) -> list[RunDirectory]:
        """The answers to what-if questions that were saved beside the run."""
        return [RunDirectory(path) for path in sorted(self.path.glob(f"{self.appended}/*")) if path.is_dir()]

    def deletable(self) -> set[str]:
        """What goes with the run: its files, saved answers, and files of trackers that it lists or its config names."""
        names = set(self.own_files())
        for answer in (*self.saved_answers(), *map(RunDirectory, self.path.glob(f".{self.appended}-*/*"))):
            below = answer.path.relative_to(self.path).as_posix()
            names |= {f"{below}/{name}" for name in answer.own_files()}
        try:
            names |= set(self.manifest.get("others", ()) if self.is_sealed else ())
            trackers = tomllib.loads(self.load(CONFIG).decode()).get("trackers", ())
            return names | {str(value) for tracker in trackers for value in tracker.values()}
        except (StoreError, ValueError, TypeError, AttributeError):
            return names

    def missing(self, name: str) -> StoreError:
        """The error for a file that is not there, or for a directory that is none of ours."""
        if (self.path / STATUS).exists():
            return super().missing(name)
        return StoreError(f"{self.path}: no run directory: give the path that `crfl run` printed")

    @classmethod
    def create(cls, path: Path, files: Mapping[str, str]) -> RunDirectory:
        """A new run directory with its first files, there at once or not at all."""
        try:
            with scratch(path.parent, new_beside(path)) as folder:
                fresh = cls(folder / path.name)
                for name, text in files.items():
                    fresh.write(name, text.encode())
                fresh.mark()
                fresh.set_state("training")
                fresh.write("rounds.jsonl", b"")
                if path.exists():
                    path.rmdir()  # an empty directory that somebody prepared
                fresh.path.rename(path)
        except (OSError, StoreError) as error:
            cause = error.__cause__ if isinstance(error, StoreError) else error
            why = cause.strerror if isinstance(cause, OSError) else cause
            raise StoreError(f"{path}: cannot create the run directory: {why}: choose another --out") from error
        return cls(path)

    def append_rounds(self, records: Sequence[RoundRecord]) -> None:
        """A round more in rounds.jsonl, a line for each model. What a kill cuts off is cut again on resume."""
        lines = b"".join(record.model_dump_json().encode() + b"\n" for record in records)
        number = records[0].round
        with (
            refusals_of_the_system(f"{self.path / ROUNDS}: cannot be written"),
            (self.path / ROUNDS).open("ab") as file,
        ):
            file.write(lines)
        self._lines.update(lines)
        self._digests_until = {number - 1: self.digests[ROUNDS], number: self._lines.hexdigest()}
        self.digests[ROUNDS] = self._digests_until[number]

    def start_rounds(self, lines: bytes) -> None:
        """What rounds.jsonl holds before the next round."""
        self.write(ROUNDS, lines)
        self._lines = sha256(lines)

    def write_checkpoint(self, number: int, tensors: Arrays, clients: Sequence[ClientColumns]) -> None:
        """Where training stands; `clients` are the rows since the last checkpoint. The rename makes it count.

        It holds the digests of everything else that a resumed run reads.
        """
        with (
            refusals_of_the_system(f"{self.path / ROUNDS}: cannot be written"),
            (self.path / ROUNDS).open("rb") as file,
        ):
            os.fsync(file.fileno())  # the lines up to this round must be on disk before it counts
        if clients:
            self.write_arrays(f"{SHARD}{number:08d}.npz", vars(ClientColumns.concatenate(clients)))
        files = {name: value for name, value in self.digests.items() if name not in (ENVIRONMENT, SAVED)}
        files = {name: value for name, value in files.items() if kept_round(name) <= number}
        files[ROUNDS] = self._digests_until[number]  # an interrupt may come before the round of the last line counts
        self.write_tensors(SAVED, {ROUND: np.array([number]), **tensors}, {"files": files})

    def remove_checkpoint(self) -> None:
        """Training is over."""
        shutil.rmtree(self.path / CHECKPOINT, ignore_errors=True)

    def read_rounds(self) -> list[RoundRecord]:
        """The complete lines of rounds.jsonl."""
        return self.parsed_rounds(self.read(ROUNDS))

    def parsed_rounds(self, content: bytes) -> list[RoundRecord]:
        """The records of complete lines."""
        *lines, _ = content.split(b"\n")
        try:
            records = [RoundRecord.model_validate_json(line) for line in lines]
            for record in records:
                validation.check_record(record)
        except ValidationError as error:
            raise self.damaged(ROUNDS, error.errors(include_url=False)[0]["msg"]) from error
        except ValueError as error:
            raise self.damaged(ROUNDS, error) from error
        return records

    def read_ledger(self) -> Ledger:
        """The whole ledger of a trained run."""
        facts = self.read_facts("ledger.json", RunFacts)
        clients = self.read_clients("clients.npz")
        rounds = tuple(self.read_rounds())
        name = "ledger.json"
        try:
            validation.check_facts(facts)
            name = "clients.npz"
            validation.check_columns(facts, clients)
            return Ledger(facts, rounds, clients)
        except ValueError as error:
            raise self.damaged(name, error) from error
        except StoreError as error:
            raise StoreError(f"{self.path}: {error}") from error

    def read_clients(self, name: str) -> ClientColumns:
        """Rows of the ledger."""
        arrays = self.read_arrays(name)
        try:
            return validation.read_client_columns(arrays)
        except ValueError as error:
            raise self.damaged(name, error) from error

    def continue_rounds(self) -> Checkpoint | None:
        """Where training stood; cuts whatever was written after it. None: nothing was saved yet."""
        saved = self.read_checkpoint()
        if saved is None:
            self.remove_checkpoint()
        for shard in self.path.glob(f"{SHARD}*"):
            if f"{CHECKPOINT}/{shard.name}" not in self.digests:
                shard.unlink()
        self.start_rounds(b"" if saved is None else self.rounds_until(saved.round))
        return saved

    def rounds_until(self, number: int) -> bytes:
        """The lines of rounds.jsonl up to a round, whatever was written behind them."""
        count = number * self.read_facts("ledger.json", RunFacts).models
        lines = b"".join(self.load(ROUNDS).splitlines(keepends=True)[:count])
        if lines.count(b"\n") != count:
            raise StoreError(
                f"{self.path}: the ledger ends before the checkpoint of round {number}: start again with --force"
            )
        return lines

    def read_checkpoint(self) -> Checkpoint | None:
        """Where training stood, compared with what the run wrote until then. None: nothing was saved yet."""
        if not (self.path / SAVED).exists():
            return None
        tensors, notes = self.read_noted(SAVED)
        number = validation.read_saved_round(tensors.pop(ROUND, None))
        if number is None:
            raise self.damaged(SAVED, "it does not say which round it is of")
        self.digests.update(self.listed(SAVED, notes.get("files")))
        lines = self.rounds_until(number)
        for name in self.digests:
            self.compare(name, lines if name == ROUNDS else self.load(name))
        shards = sorted(name for name in self.digests if name.startswith(SHARD))
        clients = [self.read_clients(shard) for shard in shards]
        covered = {int(number) for part in clients for number in np.unique(part.round)}
        if covered != set(range(1, number + 1)):
            raise self.damaged(SAVED, f"the rows of clients do not cover its {number} rounds")
        return Checkpoint(number, tensors, self.parsed_rounds(lines), clients)

    def check_facts(self, facts: RunFacts) -> None:
        """Refuse to continue with other data or another model than the run was started with, as far as it says."""
        started_with = self.read_facts("ledger.json", RunFacts)
        if set(facts.watching) <= set(started_with.watching):  # who watched before the others still counts
            facts = facts.model_copy(update={"watching": started_with.watching})
        said = (name for name, _ in started_with if name in started_with.model_fields_set)
        changed = [name for name in said if getattr(started_with, name) != getattr(facts, name)]
        if changed:
            raise StoreError(
                f"{self.path}: the data or the plugins have changed since this run was started, {', '.join(changed)} "
                "differ: restore them, or start again with --force"
            )

    def same_config(self, text: str) -> bool:
        """Whether a config, as TOML, is the one that this run was started with."""
        try:
            return tomllib.loads(self.read(CONFIG).decode()) == tomllib.loads(text)
        except ValueError as error:
            raise self.damaged(CONFIG, error) from error

    def write_resampled(self, number: int, tensors: Arrays) -> None:
        """The model of a round before noise, and the plugins' states, from which continuations start."""
        self.write_tensors(resampled_file(number), tensors, {})

    def read_resampled(self, number: int) -> dict[str, NDArray[Any]]:
        """Inverse of `write_resampled`."""
        if not self.has(resampled_file(number)):
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


def kept_round(name: str) -> int:
    """The round of a kept model by the name of its file; 0 for any other file."""
    found = re.fullmatch(r"resample/round-(\d+)\.safetensors", name)
    return int(found[1]) if found else 0
