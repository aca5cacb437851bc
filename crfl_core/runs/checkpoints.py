"""Checkpoints: rounds and models in a run directory, and how a resumed run continues from them.

`checkpoint/state.safetensors` holds models and plugin states after a round, and the digests of every other file that a
resumed run reads: its rename makes the checkpoint count. `checkpoint/clients-<round>.npz` holds the rows of the ledger
since the checkpoint before. What stands in `rounds.jsonl` behind the last checkpoint is cut when the run is resumed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.errors import PluginFailure, StoreError
from crfl_core.files.atomic_files import explain_os_errors, open_regular
from crfl_core.plugin_api.aggregator import state_key
from crfl_core.plugin_api.local_algorithm import StatefulAlgorithm
from crfl_core.records import ledger_validation as validation
from crfl_core.records.ledger import ClientColumns, RoundRecord, RunFacts
from crfl_core.runs.run_directory import CHECKPOINT, ENVIRONMENT, LEDGER, ROUNDS, Arrays, RunDirectory, parse_kept_round
from crfl_core.training.crafting import initial_attack_state
from crfl_core.training.rounds import Progress

if TYPE_CHECKING:
    from crfl_core.records.round import State
    from crfl_core.training.federation import Federation

SAVED = f"{CHECKPOINT}/state.safetensors"
SHARD = f"{CHECKPOINT}/clients-"

ROUND = "round"
PARAMETERS = "parameters"
ATTACK = "attack"
MEMORY = "clients"
TWIN = "twin/"
FAILED = "failed"
"""Names of tensors in a checkpoint."""

Groups = tuple[Progress, ...]
"""Progress of training, one entry for each group."""


class StateLayoutError(PluginFailure, KeyError):
    """Error about an entry of a plugin's state that the checkpoint does not hold."""

    __str__ = Exception.__str__


class RestoredState(dict[str, Tensor]):
    """State of a plugin as a checkpoint holds it. An entry that is missing says why."""

    def __missing__(self, name: str) -> Tensor:
        raise StateLayoutError(
            f"the state that the run kept has no {name!r} but {', '.join(map(repr, self)) or 'nothing'}: the plugin's "
            f"code has changed since: resume with the version that {ENVIRONMENT} names, or start again with --force"
        )


class Checkpoint(NamedTuple):
    """Checkpoint: the tensors of the models and the plugins, and the ledger so far."""

    round: int
    tensors: dict[str, NDArray[Any]]
    records: list[RoundRecord]
    clients: list[ClientColumns]


class CheckpointWriter:
    """Writes every round, and every few seconds a checkpoint.

    `seconds` is the least time between two checkpoints. When something goes wrong, `save` writes what is not saved yet.
    """

    def __init__(self, directory: RunDirectory, seconds: float) -> None:
        self._directory = directory
        self._seconds = seconds
        self._last = time.monotonic()
        self._unsaved: tuple[Groups, Groups, list[ClientColumns]] | None = None
        self._rounds_hash = sha256(directory.read_unverified(ROUNDS))
        self._rounds_digests: dict[int, str] = {}  # of rounds.jsonl after each of the last two rounds

    def append_rounds(self, records: Sequence[RoundRecord]) -> None:
        """Append a round to rounds.jsonl, with a line for each model.

        A line that a kill cuts off is removed on resume.
        """
        lines = b"".join(record.model_dump_json().encode() + b"\n" for record in records)
        number = records[0].round
        path = self._directory.path / ROUNDS
        with (
            explain_os_errors(f"{path}: cannot be written"),
            os.fdopen(open_regular(path, os.O_WRONLY | os.O_APPEND), "ab") as file,
        ):
            file.write(lines)
        digests = self._directory.digests
        self._rounds_hash.update(lines)
        self._rounds_digests = {number - 1: digests[ROUNDS], number: self._rounds_hash.hexdigest()}
        digests[ROUNDS] = self._rounds_digests[number]

    def note_round(self, progress: Groups, twin: Groups, clients: Sequence[ClientColumns]) -> None:
        """Note that a round is over.

        Write a checkpoint if it is time. Progress and rows change together: an interrupt comes before both or behind
        both.
        """
        self._unsaved = progress, twin, [*(self._unsaved[2] if self._unsaved else ()), *clients]
        if time.monotonic() - self._last >= self._seconds:
            self.save()

    def save(self) -> None:
        """Write a checkpoint of what is not saved yet."""
        if self._unsaved is not None:
            progress, twin, rows = self._unsaved
            self.write(progress[0].number, progress_to_arrays(progress) | twin_to_arrays(twin), rows)
        self._unsaved = None
        self._last = time.monotonic()

    def write(self, number: int, tensors: Arrays, clients: Sequence[ClientColumns]) -> None:
        """Write a checkpoint of a round.

        `clients` are the rows since the last checkpoint. The rename of the tensor file makes it count. It holds the
        digests of all else that a resumed run reads.
        """
        directory = self._directory
        path = directory.path / ROUNDS
        with explain_os_errors(f"{path}: cannot be written"), path.open("rb") as file:
            os.fsync(file.fileno())  # the lines up to this round must be on disk before it counts
        if clients:
            directory.write_arrays(f"{SHARD}{number:08d}.npz", vars(ClientColumns.concatenate(clients)))
        files = {
            name: digest
            for name, digest in directory.digests.items()
            if name not in (ENVIRONMENT, SAVED) and parse_kept_round(name) <= number
        }
        files[ROUNDS] = self._rounds_digests[number]  # an interrupt may come before the round of the last line counts
        directory.write_tensors(SAVED, {ROUND: np.array([number]), **tensors}, {"files": files})


def continue_rounds(directory: RunDirectory) -> Checkpoint | None:
    """Read a run's checkpoint, and cut what was written after it.

    None if nothing was saved yet.
    """
    saved = read_checkpoint(directory)
    if saved is None:
        remove_checkpoint(directory)
    for name in list_checkpoint_files(directory):
        if name not in (SAVED, *directory.digests):
            (directory.path / name).unlink()
    directory.write(ROUNDS, b"" if saved is None else rounds_until(directory, saved.round))
    return saved


def read_checkpoint(directory: RunDirectory) -> Checkpoint | None:
    """Read a run's checkpoint, and compare it with the run's files.

    They must be what the run wrote until then. None if nothing was saved yet.
    """
    if not (directory.path / SAVED).exists():
        return None
    tensors, notes = directory.read_tensors_and_notes(SAVED)
    number = validation.read_saved_round(tensors.pop(ROUND, None))
    if number is None:
        raise directory.damage_error(SAVED, "it does not say which round it is of")
    directory.digests.update(directory.parse_digests(SAVED, notes.get("files")))
    lines = rounds_until(directory, number)
    for name in directory.digests:
        directory.check_digest(name, lines if name == ROUNDS else directory.read_unverified(name))
    shards = sorted(name for name in directory.digests if name.startswith(SHARD))
    clients = [directory.read_clients(shard) for shard in shards]
    covered = {int(number) for part in clients for number in np.unique(part.round)}
    if covered != set(range(1, number + 1)):
        raise directory.damage_error(SAVED, f"the rows of clients do not cover its {number} rounds")
    return Checkpoint(number, tensors, directory.parse_rounds(lines), clients)


def rounds_until(directory: RunDirectory, number: int) -> bytes:
    """Return the lines of `rounds.jsonl` up to and including a round.

    Raises `StoreError` if the file ends earlier.
    """
    count = number * directory.read_facts(LEDGER, RunFacts).models
    lines = b"".join(directory.read_unverified(ROUNDS).splitlines(keepends=True)[:count])
    if lines.count(b"\n") != count:
        raise StoreError(
            f"{directory.path}: the ledger ends before the checkpoint of round {number}: start again with --force"
        )
    return lines


def remove_checkpoint(directory: RunDirectory) -> None:
    """Remove the checkpoint.

    Training is over, or starts again. Files that the run did not write stay.
    """
    with contextlib.suppress(OSError):
        for name in list_checkpoint_files(directory):
            (directory.path / name).unlink()
        (directory.path / CHECKPOINT).rmdir()


def list_checkpoint_files(directory: RunDirectory) -> list[str]:
    """List the files of the checkpoint."""
    return [name for name in directory.list_own_files() if name.startswith(f"{CHECKPOINT}/")]


def progress_to_arrays(progress: Sequence[Progress], models: Sequence[Tensor] | None = None) -> dict[str, NDArray[Any]]:
    """Return a run's models and plugin states as arrays by name.

    With the `models` before noise instead, from which continuations start, nothing of what attackers remember. The
    model of a run is (P,), those of several groups are (G, P), and their states are kept apart.
    """
    parameters = torch.cat([group.models for group in progress] if models is None else [*models])
    alone = len(progress) == 1
    tensors = {PARAMETERS: parameters[0] if alone else parameters}
    for number, group in enumerate(progress):
        place = "" if alone else f"group-{number}/"
        for owner, state in group.states[0].items():
            tensors |= {f"{place}{owner}/{name}": tensor for name, tensor in state.items()}
        tensors |= {f"{place}{MEMORY}/{name}": values[0] for name, values in group.memory.items()}
    remembered = (progress[0].attack_state if models is None else None) or {}
    tensors |= {f"{ATTACK}/{name}": tensor for name, tensor in remembered.items()}
    return {name: tensor.cpu().contiguous().numpy() for name, tensor in tensors.items()}


def twin_to_arrays(twin: Groups) -> dict[str, NDArray[Any]]:
    """Return the arrays of the clean twin that is trained alongside.

    The dictionary is empty without a twin.
    """
    failed = np.array([group.failed is not None for group in twin])
    tensors = {**progress_to_arrays(twin), FAILED: failed} if twin else {}
    return {f"{TWIN}{name}": tensor for name, tensor in tensors.items()}


def twin_from_arrays(number: int, arrays: Mapping[str, NDArray[Any]], federation: Federation) -> Groups:
    """Return the clean twin that `twin_to_arrays` made arrays of."""
    own = {name.removeprefix(TWIN): array for name, array in arrays.items() if name.startswith(TWIN)}
    failed = dict.fromkeys(np.flatnonzero(own.pop(FAILED, np.zeros(0))).tolist(), "its training ended before")
    groups = progress_from_arrays(number, own, failed, federation) if own else ()
    return tuple(replace(group, attack_state=None) for group in groups)


def progress_from_arrays(
    number: int, arrays: dict[str, NDArray[Any]], failed: Mapping[int, str], federation: Federation
) -> Groups:
    """Restore progress from arrays, the inverse of `progress_to_arrays`.

    `failed` are the groups that do not train any more, and why. Raises `StoreError` for models that are not of this
    federation.
    """
    groups = len(federation.participation.members)
    size = federation.model.layout.size
    try:
        validation.check_tensor(arrays, PARAMETERS, (size,) if groups == 1 else (groups, size), federation.config.dtype)
    except ValueError as error:
        raise StoreError(f"the model kept of round {number} cannot be used: {error}") from error
    of_run = {name: array for name, array in arrays.items() if not name.startswith(TWIN)}
    tensors = {name: torch.from_numpy(array).to(federation.device) for name, array in of_run.items()}
    kept = {key: tensors.pop(key) for key in [*tensors] if key.startswith(f"{ATTACK}/")}
    remembered = RestoredState({key.removeprefix(f"{ATTACK}/"): tensor for key, tensor in kept.items()})
    attack_state = None if initial_attack_state(federation) is None else remembered
    parameters = tensors.pop(PARAMETERS)
    models = parameters[None] if parameters.ndim == 1 else parameters
    owners = [state_key(position) for position in range(len(federation.config.aggregation))]
    states: list[dict[str, RestoredState]] = [{owner: RestoredState() for owner in owners} for _ in models]
    for key, tensor in tensors.items():
        place, _, own = key.partition("/") if parameters.ndim > 1 else ("group-0", "", key)
        owner, _, name = own.partition("/")
        states[int(place.removeprefix("group-"))].setdefault(owner, RestoredState())[name] = tensor
    progress = []
    for group, (one, of_group) in enumerate(zip(models, states, strict=True)):
        memory = memory_from_arrays(number, of_group.pop(MEMORY, {}), federation, group)
        progress.append(
            Progress(number, one[None], (of_group,), failed=failed.get(group), attack_state=attack_state, memory=memory)
        )
    return tuple(progress)


def memory_from_arrays(number: int, arrays: Mapping[str, Tensor], federation: Federation, group: int) -> State:
    """Return what the algorithm kept of a group's clients.

    Raises `StoreError` unless it is of this federation.
    """
    algorithm = federation.config.training.algorithm
    names = algorithm.remembers if isinstance(algorithm, StatefulAlgorithm) else ()
    shape = len(federation.participation.members[group]), federation.model.layout.size
    found = {name: tuple(values.shape) for name, values in arrays.items()}
    if found != dict.fromkeys(names, shape):
        raise StoreError(
            f"the memory of clients kept of round {number} cannot be used: needed {dict.fromkeys(names, shape)}, found "
            f"{found}: start again with --force"
        )
    return {name: values[None].to(federation.dtype) for name, values in arrays.items()}
