"""Run directories: plain files, written atomically, resumable, never pickled.

config.toml          the complete config; loads to the same object
environment.json     versions of everything that took part, and its own digest
crfl.json            says that this is a run directory
status.json          training, trained or finished, and the digests of what was written so far
manifest.json        the SHA-256 of every file of a finished run; its own is in status.json
ledger.json          static facts          rounds.jsonl  one line per round
clients.npz          one row per round and client
checkpoint/          while training: model and plugin states, and the rows of clients.npz so far
features.safetensors what feature maps were fitted to, if any
model.safetensors    the clipped final aggregate, before any test noise
resample/            models of rounds before noise, from which continuations start, and the continued models
votes/<digest>.npz   one file per vote request
certificates/*.csv   one file per certificate: a row per level, test set and sample
collective/*.csv     collective certified accuracy by the number of malicious clients, if a certificate has it
audit.json           every assumption of every certificate
metrics.json         all numbers of the tables, and the classes of every client
figures/             partition.svg and partition.png: the same as a picture
what-if/<name>/      saved answers to what-if questions, each with a manifest of its own
"""

from __future__ import annotations

import io
import json
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from crfl_core.errors import StoreError
from crfl_core.files.atomic_files import LOCK, content_digest, refuse_links, rename_folder, scratch_folder
from crfl_core.files.bounded_reading import read_arrays
from crfl_core.records import ledger_validation as validation
from crfl_core.records.ledger import ClientColumns, Ledger, RoundRecord, RunFacts
from crfl_core.runs.recorded_directory import STATUS, RecordedDirectory, files_below, is_folder

CONFIG = "config.toml"
ENVIRONMENT = "environment.json"
LEDGER = "ledger.json"
ROUNDS = "rounds.jsonl"
CLIENTS = "clients.npz"
MODEL = "model.safetensors"
FITTED_MAPS = "features.safetensors"
CHECKPOINT = "checkpoint"
VOTE_SEED = "votes/seed.json"

RunState = Literal["training", "trained", "finished"]
Arrays = Mapping[str, NDArray[Any]]

CERTIFICATE_TABLES = ("certificates/{}.csv", "certificates/{}-by-clients.csv", "collective/{}.csv")
"""Tables of a certificate: its samples, numbers of clients and triggers, and collective certified accuracy."""
UNSAVED_ANSWER = ".what-if-"
"""Prefix of folders in which an answer is written before it is saved."""

NOTES = "crfl"
"""The one entry of a tensor file's metadata, as JSON: safetensors writes several in any order."""

OWN_FILES = re.compile(
    r"config\.toml|environment\.json|ledger\.json|rounds\.jsonl|clients\.npz|model\.safetensors|features\.safetensors"
    r"|audit\.json|metrics\.json|report\.html|figures/partition\.(svg|png|pdf)"
    r"|checkpoint/(clients-\d{8,}\.npz|state\.safetensors)"
    r"|resample/(round-\d{4,}|models-[0-9a-f]+)\.safetensors|votes/([0-9a-f]+\.npz|seed\.json)"
)
"""Names of the files of a run, but for those of its certificates, which its config names."""

HEADER_LENGTH_BYTES = 8
"""Bytes at the start of a tensor file that say how long its header is."""


class RunDirectory(RecordedDirectory):
    """The files of one run. Reading never changes anything; writing needs the lock."""

    kind = "run directory of crfl"
    states = get_args(RunState)
    file_names = OWN_FILES

    @classmethod
    def create(cls, path: Path, files: Mapping[str, str], environment: Mapping[str, object]) -> RunDirectory:
        """Create a run directory with its first files.

        It is created at once or not at all.
        """
        try:
            with scratch_folder(path.parent, scratch_prefix(path)) as folder:
                fresh = cls(folder / path.name)
                for name, text in files.items():
                    fresh.write(name, text.encode())
                fresh.write_marker()
                fresh.set_state("training")
                fresh.write_sealed(ENVIRONMENT, environment)
                fresh.write(ROUNDS, b"")
                if path.exists():
                    path.rmdir()  # an empty directory that the user prepared
                rename_folder(fresh.path, path)
        except (OSError, StoreError) as error:
            cause = error.__cause__ if isinstance(error, StoreError) else error
            why = cause.strerror if isinstance(cause, OSError) else cause
            raise StoreError(f"{path}: cannot create the run directory: {why}: choose another --out") from error
        return cls(path)

    @property
    def state(self) -> RunState:
        """Return how far the run has come."""
        return cast("RunState", self.status["state"])

    @cached_property
    def model_digest(self) -> str:
        """Return a digest of the final model.

        Stored votes are matched to the model by it.
        """
        return content_digest(self.read(MODEL))

    def permanent_digests(self) -> dict[str, str]:
        """Return the files that stay when training is over, with their digests."""
        return {name: value for name, value in self.digests.items() if not name.startswith(f"{CHECKPOINT}/")}

    def list_saved_answers(self) -> list[RunDirectory]:
        """List the answers to what-if questions that were saved beside the run."""
        folder = self.path / self.growing_folder
        found = sorted(folder.iterdir()) if is_folder(folder) else []
        return [RunDirectory(path) for path in found if is_folder(path)]

    def list_deletable_files(self) -> set[str]:
        """Return the files that go with the run.

        They are its own files, saved answers, and the files and folders that the options of its trackers name.
        """
        names = {*self.list_own_files(), *self.list_certificate_files(), *self.list_unchanged_files()}
        unsaved = (entry for entry in self.path.iterdir() if entry.name.startswith(UNSAVED_ANSWER) and is_folder(entry))
        answers = [RunDirectory(entry) for folder in unsaved for entry in folder.iterdir() if is_folder(entry)]
        for answer in (*self.list_saved_answers(), *answers):
            below = answer.path.relative_to(self.path).as_posix()
            of_answer = (*answer.list_own_files(), *answer.list_certificate_files(), *answer.list_unchanged_files())
            names |= {f"{below}/{name}" for name in of_answer}
        named = {value for tracker in self.read_tables("trackers") for value in map(str, tracker.values())}
        for file in files_below(self.path):
            places = {file.as_posix(), *(folder.as_posix() for folder in file.parents)} - {"."}
            if places & named or is_scratch_lock(file):
                names.add(file.as_posix())
        return names

    def list_certificate_files(self) -> list[str]:
        """List the tables of the certificates that the config names."""
        tables = self.read_tables("certificates")
        titles = {str(table.get("name") or str(table.get("type")).rpartition(":")[2]) for table in tables}
        return [pattern.format(title) for title in titles for pattern in CERTIFICATE_TABLES]

    def list_unchanged_files(self) -> list[str]:
        """List the recorded files that did not change, under any name.

        They still are what the run wrote.
        """
        found = []
        with suppress(StoreError):  # no record that can be read: then names decide
            for name in self.digests:
                with suppress(StoreError):
                    self.read(name)
                    found.append(name)
        return found

    def read_tables(self, key: str) -> list[dict[str, Any]]:
        """Read a list of tables of the config.

        It is empty if the config cannot be read.
        """
        try:
            found = tomllib.loads(self.read_unverified(CONFIG).decode()).get(key, ())
        except (StoreError, ValueError, RecursionError):
            return []
        return [table for table in found if isinstance(table, dict)] if isinstance(found, list) else []

    def missing_file_error(self, name: str) -> StoreError:
        """Return the error for a file that does not exist.

        If the path is not a run directory, the error says so.
        """
        if (self.path / STATUS).exists():
            return super().missing_file_error(name)
        return StoreError(f"{self.path}: not a run directory: give the path that `crfl run` printed")

    def has_config(self, text: str) -> bool:
        """Return whether this run was started with a config.

        `text` is that config as TOML.
        """
        try:
            return tomllib.loads(self.read(CONFIG).decode()) == tomllib.loads(text)
        except ValueError as error:
            raise self.damage_error(CONFIG, error) from error

    def check_before_resuming(self) -> None:
        """Raise `StoreError` if the directory is not safe to resume in.

        A link must not lead out of the run, and the files of a trained run must be what it wrote. Trackers write into
        the directory as well, and would follow the link. Votes that the user deleted are counted again.
        """
        for file in files_below(self.path):
            if not (self.path / file).resolve().is_relative_to(self.path.resolve()):
                refuse_links(self.path, file.as_posix())
        for name in [*self.digests] if self.state == "trained" else ():
            if name.startswith("votes/") and not (self.path / name).exists():
                del self.digests[name]
            else:
                self.read(name)

    def check_facts(self, facts: RunFacts) -> None:
        """Raise `StoreError` if the run's data or model has changed.

        They must be those that the run was started with. The same holds for its plugins.
        """
        started_with = self.read_facts(LEDGER, RunFacts)
        if set(facts.watching) <= set(started_with.watching):  # trackers of earlier rounds still count
            facts = facts.model_copy(update={"watching": started_with.watching})
        for name in ("engine", "foreign_maps", "rule"):  # a class and its distribution are two names of one plugin
            recorded_names = getattr(started_with, name)
            if bool(recorded_names) and (name != "foreign_maps" or len(recorded_names) == len(facts.foreign_maps)):
                facts = facts.model_copy(update={name: recorded_names})
        recorded = (name for name, _ in started_with if name in started_with.model_fields_set)
        changed = [name for name in recorded if getattr(started_with, name) != getattr(facts, name)]
        if changed:
            raise StoreError(
                f"{self.path}: the data or the plugins have changed since this run was started, {', '.join(changed)} "
                "differ: restore them, or start again with --force"
            )

    # Arrays and tensors

    def write_arrays(self, name: str, arrays: Arrays) -> None:
        """Write a compressed npz file."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # the stubs take a keyword for an option
        self.write(name, buffer.getvalue())

    def read_arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """Read an npz file; pickled objects are refused."""
        content = self.read(name)
        try:
            return read_arrays(content)
        except Exception as error:  # an unpacker may raise anything
            raise self.damage_error(name, f"not an npz file of plain arrays: {error}") from error

    def write_tensors(self, name: str, tensors: Arrays, notes: Mapping[str, object]) -> None:
        """Write a safetensors file with notes and its tensors' digest."""
        # Of other arrays safetensors would write the memory, in whatever order it is.
        ordered = {name: np.asarray(array, order="C") for name, array in tensors.items()}
        written = {**notes, "sha256": tensor_digest(ordered, notes)}
        self.write(name, save_tensors(ordered, metadata={NOTES: json.dumps(written, sort_keys=True)}))

    def read_tensors(self, name: str) -> dict[str, NDArray[Any]]:
        """Read a safetensors file, and compare it with the digest in it."""
        return self.read_tensors_and_notes(name)[0]

    def read_tensors_and_notes(self, name: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Read a safetensors file and the notes in it."""
        content = self.read(name)
        try:
            tensors = load_tensors(content)
            header_end = HEADER_LENGTH_BYTES + int.from_bytes(content[:HEADER_LENGTH_BYTES], "little")
            header = json.loads(content[HEADER_LENGTH_BYTES:header_end])
            notes = json.loads(header["__metadata__"][NOTES])
            found = notes.pop("sha256")
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self.damage_error(name, error) from error
        if found != tensor_digest(tensors, notes):
            raise self.damage_error(name, "its tensors are not those that the run wrote, their SHA-256 is another")
        return tensors, notes

    # Models of rounds before noise

    def write_resampled(self, number: int, tensors: Arrays) -> None:
        """Write the models of a round before noise, and plugin states.

        Continuations start from them.
        """
        self.write_tensors(name_resampled_file(number), tensors, {})

    def read_resampled(self, number: int) -> dict[str, NDArray[Any]]:
        """Read what `write_resampled` wrote.

        Raises `StoreError` if the models of that round were not kept.
        """
        if not self.has(name_resampled_file(number)):
            stored = sorted(file.stem.removeprefix("round-") for file in (self.path / "resample").glob("round-*"))
            kept = ", ".join(str(int(number)) for number in stored) or "none"
            raise StoreError(
                f"{self.path}: the model of round {number} was not kept, so noise cannot be drawn again from there: "
                f"kept are {kept}; set resample_from before the run"
            )
        return self.read_tensors(name_resampled_file(number))

    # The ledger

    def read_ledger(self) -> Ledger:
        """Read the whole ledger of a trained run."""
        facts = self.read_facts(LEDGER, RunFacts)
        clients = self.read_clients(CLIENTS)
        rounds = tuple(self.read_rounds())
        name = LEDGER
        try:
            validation.check_facts(facts)
            name = CLIENTS
            validation.check_columns(facts, clients)
            return Ledger(facts, rounds, clients)
        except ValueError as error:
            raise self.damage_error(name, error) from error
        except StoreError as error:
            raise StoreError(f"{self.path}: {error}") from error

    def read_clients(self, name: str) -> ClientColumns:
        """Read rows of the ledger."""
        arrays = self.read_arrays(name)
        try:
            return validation.read_client_columns(arrays)
        except ValueError as error:
            raise self.damage_error(name, error) from error

    def read_rounds(self) -> list[RoundRecord]:
        """Read the complete lines of rounds.jsonl."""
        return self.parse_rounds(self.read(ROUNDS))

    def parse_rounds(self, content: bytes) -> list[RoundRecord]:
        """Parse the complete lines of rounds.jsonl."""
        *lines, _ = content.split(b"\n")
        try:
            records = [RoundRecord.model_validate_json(line) for line in lines]
            for record in records:
                validation.check_record(record)
        except ValidationError as error:
            raise self.damage_error(ROUNDS, error.errors(include_url=False)[0]["msg"]) from error
        except ValueError as error:
            raise self.damage_error(ROUNDS, error) from error
        return records


def scratch_prefix(path: Path) -> str:
    """Return the prefix of scratch folders for a new run directory."""
    return f".{path.name}.new-"


def is_scratch_lock(file: Path) -> bool:
    """Return whether a file locks an answer that was not saved."""
    return len(file.parts) > 1 and file.parts[0].startswith(UNSAVED_ANSWER) and file.parts[1:] == (LOCK,)


def name_resampled_file(number: int) -> str:
    """Return the file name for models of a round before noise."""
    return f"resample/round-{number:04d}.safetensors"


def parse_kept_round(name: str) -> int:
    """Return the round of a `resampled_file`; 0 for any other file."""
    found = re.fullmatch(r"resample/round-(\d+)\.safetensors", name)
    return int(found[1]) if found else 0


def tensor_digest(tensors: Arrays, notes: Mapping[str, object]) -> str:
    """Return a digest of tensors and of the notes beside them.

    It covers the names, types, shapes and values of the tensors.
    """
    return content_digest(save_tensors(dict(tensors)) + json.dumps(notes, sort_keys=True).encode())
