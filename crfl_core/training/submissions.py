"""Submissions: what the engine trained, checked and put into order; attackers' updates crafted; bad ones zeroed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.errors import PluginFailure, RunError
from crfl_core.plugin_api.aggregator import LinearAggregator
from crfl_core.plugin_api.plugin_errors import PluginMethod, errors_of
from crfl_core.plugin_loading.mutation_guard import guard_inputs
from crfl_core.records.round import (
    BatchMeasurements,
    LocalUpdates,
    ParticipantRows,
    State,
    Submission,
    TrainingTask,
)
from crfl_core.training import aggregator_contract as contract
from crfl_core.training.attackers import overrides
from crfl_core.training.crafting import Crafting
from crfl_core.training.effective_weights import row_norms
from crfl_core.training.server_optimiser import nominal_rate

if TYPE_CHECKING:
    from crfl_core.plugin_api.attack import Attack
    from crfl_core.plugin_api.engine import Engine
    from crfl_core.training.aggregation_chain import States
    from crfl_core.training.federation import Federation
    from crfl_core.training.session import RoundPlan


def train_clients(engine: Engine, task: TrainingTask) -> Iterator[LocalUpdates]:
    """Let the engine train every participant, and yield checked parts.

    Parts come in the order of participants. The engine may yield its parts in any order, but must train each
    participant exactly once from every model. A part with updates of the wrong shape counts as non-finite: the clients
    sent it.
    """
    clients = len(task.clients)
    times_trained = np.zeros(clients, np.int64)
    reached = 0
    waiting: dict[int, LocalUpdates] = {}
    who = PluginMethod("engine", engine, "train")
    with errors_of("engine", engine), guard_inputs(who, task):
        for trained in engine.train(task):
            if not isinstance(trained, LocalUpdates):
                raise PluginFailure(f"the engine must yield LocalUpdates, found {type(trained).__name__}")
            rows = range(clients)[trained.part]
            times_trained[trained.part] += 1
            if not rows or rows.step != 1 or (times_trained[trained.part] > 1).any():
                break
            waiting[rows.start] = check_part(trained, rows, task)
            while reached in waiting:
                ready = waiting.pop(reached)
                yield ready
                reached = ready.part.stop
    if (times_trained != 1).any() or reached != clients:
        wrong = np.append(np.flatnonzero(times_trained != 1), reached)[0]
        raise PluginFailure(
            f"the engine must train every participant once: client {task.clients.ids[wrong]} in round {task.number}"
        )


def check_part(trained: LocalUpdates, rows: range, task: TrainingTask) -> LocalUpdates:
    """Return an engine's part in a form that the server can use."""
    replicas, _, size = task.starts.shape
    measurements = trained.measurements
    updates = trained.updates.to(task.starts)
    if not isinstance(measurements, BatchMeasurements) or {len(column) for column in vars(measurements).values()} != {
        len(rows)
    }:
        raise PluginFailure(
            "the engine must return the measurements of each participant's batches as the job returned them, found "
            f"others in round {task.number}"
        )
    if updates.ndim == 3 and len(updates) != replicas:
        raise PluginFailure(
            f"the engine must train every participant from all {replicas} models, found {len(updates)} in round "
            f"{task.number}"
        )
    if updates.shape != (replicas, len(rows), size):
        updates = task.starts.new_full((replicas, len(rows), size), torch.nan)
    return LocalUpdates(slice(rows.start, rows.stop), updates, measurements, check_client_memory(trained, rows, task))


def check_client_memory(trained: LocalUpdates, rows: range, task: TrainingTask) -> State:
    """Return what participants keep, as the engine returned it.

    Raises `PluginFailure` unless names and shapes are those of the task.
    """
    shape = len(task.starts), len(rows), task.starts.shape[-1]
    found = {name: tuple(values.shape) for name, values in trained.memory.items()}
    if found != dict.fromkeys(task.memory, shape):
        raise PluginFailure(
            "the engine must return the memory of each participant as the job returned it, "
            f"{dict.fromkeys(task.memory, shape)}, found {found} in round {task.number}"
        )
    return {name: values.to(task.starts) for name, values in trained.memory.items()}


def rows_of_group(part: LocalUpdates, rows: slice) -> LocalUpdates | None:
    """Return the rows of a part that lie in a group.

    They are counted from the group's first. None if there are none.
    """
    first = max(part.part.start, rows.start)
    last = min(part.part.stop, rows.stop)
    if first >= last:
        return None
    place = slice(first - rows.start, last - rows.start)
    if last - first == part.part.stop - part.part.start:
        return replace(part, part=place)
    inside = slice(first - part.part.start, last - part.part.start)
    measurements = part.measurements.take(np.arange(inside.start, inside.stop))
    memory = {name: values[:, inside] for name, values in part.memory.items()}
    return LocalUpdates(place, part.updates[:, inside], measurements, memory)


class UpdateBuffer:
    """All parts of a group as one. Each is copied when it comes: an engine may use its memory again for the next."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._updates: Tensor | None = None
        self._measurements = BatchMeasurements.writable(clients)

    def add(self, part: LocalUpdates) -> LocalUpdates | None:
        """Add the next part in order.

        Return all parts as one if this was the last, else None.
        """
        if part.part == slice(0, self._clients):
            return part
        if self._updates is None:
            shape = len(part.updates), self._clients, part.updates.shape[2]
            self._updates = part.updates.new_empty(shape)
        self._updates[:, part.part] = part.updates
        self._measurements.put(part.part, part.measurements)
        if part.part.stop < self._clients:
            return None
        return LocalUpdates(slice(0, self._clients), self._updates, self._measurements)


def merge_parts(parts: Iterable[LocalUpdates], clients: int) -> LocalUpdates:
    """Return all parts of a round, which come in order, as one."""
    buffer = UpdateBuffer(clients)
    whole = [buffer.add(part) for part in parts][-1]
    assert whole is not None
    return whole


class Submissions:
    """Submissions of the participants of one group in one round, made of what they trained.

    Attackers whose attack has a `craft` method wait for each other and craft together. If they know nothing of the
    others, those need not wait for them. All other attackers scale what they trained.
    """

    def __init__(
        self, federation: Federation, plan: RoundPlan, start: Tensor, states: States, attack_state: State | None
    ) -> None:
        self._federation = federation
        self._plan = plan
        self._waiting: list[tuple[NDArray[np.int64], Tensor, BatchMeasurements]] = []
        self._crafting: Crafting | None = None
        if federation.config.attack is not None and overrides(federation.config.attack, "craft"):
            self._crafting = Crafting(federation, plan, start, states, attack_state)

    def receive(self, trained: LocalUpdates) -> Iterator[Submission]:
        """Yield what participants of a part submit.

        Attackers who craft wait for each other.
        """
        all_attacking = self._plan.behaviour.attacking
        places = np.arange(len(all_attacking))[trained.part]
        attacking = all_attacking[places]
        if self._crafting is None or not attacking.any() or len(places) == len(all_attacking):
            yield self._submit(trained.part, trained.updates, trained.measurements)
            return
        self._waiting.append(take_rows(trained, places, attacking))
        if not attacking.all():
            yield self._submit(*take_rows(trained, places, ~attacking))

    def receive_waiting(self) -> Iterator[Submission]:
        """Yield what the waiting attackers submit, once all have trained."""
        if self._waiting:
            places, updates, measurements = zip(*self._waiting, strict=True)
            yield self._submit(
                np.concatenate(places), torch.cat(updates, 1), BatchMeasurements.concatenate(measurements)
            )

    def _submit(self, part: ParticipantRows, updates: Tensor, measurements: BatchMeasurements) -> Submission:
        """Return what participants who trained these updates submit.

        Updates, (K, k, P), are crafted and measured, and bad ones become zero.
        """
        attacking = self._plan.behaviour.attacking[part]
        attackers = np.flatnonzero(attacking)
        scale = np.ones(updates.shape[1])
        norms = row_norms(updates)
        attack = self._federation.config.attack
        if len(attackers) and attack is not None:
            trained = norms[0, attackers]
            updates = self._attack(attack, part, updates[0], attackers)
            norms = row_norms(updates)
            scale[attackers] = (norms[0, attackers] / trained.clamp(min=torch.finfo(updates.dtype).tiny)).numpy()
        quarantined = ~torch.isfinite(norms)
        if quarantined.any():
            self._check_may_quarantine(part, quarantined)
            updates = updates.clone(memory_format=torch.contiguous_format)
            updates[quarantined.to(updates.device)] = 0.0
            scale[quarantined[0].numpy() & attacking] = 0.0  # a quarantined update counts as zero, here as well
        return Submission(part, updates, norms, quarantined, scale, measurements)

    def _attack(self, attack: Attack, part: ParticipantRows, values: Tensor, attackers: NDArray[np.int64]) -> Tensor:
        """Return a part's updates with those of attackers scaled or crafted.

        They are (1, k, P). `values`, (k, P), are the updates as trained, `attackers` the places of attackers in the
        part. Only the run itself is attacked, not its continuations, so there is one model.
        """
        weights = nominal_weights(self._plan)[part][attackers]
        if self._crafting is not None:
            submitted = self._crafting.craft(attack, part, values, attackers, weights)
        else:
            with errors_of("attack", attack):
                submitted = attack.scales(weights)[:, None].to(values) * values[attackers]
        if len(attackers) == len(values):
            return submitted.to(values)[None]
        replaced = values.clone(memory_format=torch.contiguous_format)
        replaced[attackers] = submitted.to(values)
        return replaced[None]

    def _check_may_quarantine(self, part: ParticipantRows, quarantined: Tensor) -> None:
        """Raise `RunError` in a round without attack.

        No ledger would say whose update counts as zero.
        """
        plan = self._plan
        if plan.is_run:
            return
        client = plan.clients.ids[part][int(quarantined.any(0).nonzero()[0])]
        raise RunError(
            f"round {plan.number} of a continuation or clean twin: the update of client {client} is not finite "
            "or of the wrong shape: lower training.learning_rate, or correct the engine"
        )


def nominal_weights(plan: RoundPlan) -> Tensor:
    """Return the weights that attackers expect.

    They are those of a linear rule, else those by sample counts. The server's rate is a factor of them.
    """
    rule = plan.server.aggregation[-1]
    optimiser = plan.server.optimiser
    rate = 1.0 if optimiser is None else nominal_rate(optimiser, plan)
    if isinstance(rule, LinearAggregator):
        return rate * contract.ask_weights(rule, plan.clients, plan.server.answers)
    samples = torch.from_numpy(plan.clients.samples).double()
    return rate * samples / samples.sum()


def take_rows(
    trained: LocalUpdates, places: NDArray[np.int64], chosen: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], Tensor, BatchMeasurements]:
    """Return the rows of a part's chosen participants.

    These are places in the round, updates and measurements.
    """
    rows = np.flatnonzero(chosen)
    return places[rows], trained.updates[:, torch.from_numpy(rows)], trained.measurements.take(rows)


class Arrivals:
    """Numbers about the updates that arrived for the first model, a few per client, which the ledger keeps.

    `norms` are the submitted norms, `scale` the measured factors of attackers. `quarantined` are the updates that are
    not finite or have the wrong shape: they count as zero.
    """

    def __init__(self, clients: int) -> None:
        self.norms = np.zeros(clients)
        self.scale = np.ones(clients)
        self.quarantined = np.zeros(clients, np.bool_)
        self.measurements = BatchMeasurements.writable(clients)
        self._any_usable = False

    def add(self, submission: Submission) -> None:
        """Keep the numbers of some participants."""
        self.norms[submission.part] = submission.norms[0].numpy()
        self.scale[submission.part] = submission.scale
        self.quarantined[submission.part] = submission.quarantined[0].numpy()
        self.measurements.put(submission.part, submission.measurements)
        self._any_usable = self._any_usable or bool((~submission.quarantined).all(0).any())

    def check_usable(self, number: int) -> None:
        """Raise `RunError` if no update of the round can be used."""
        if not self._any_usable:
            raise RunError(
                f"round {number}: no usable update is left, all {len(self.quarantined)} are non-finite or of the wrong "
                "shape: lower training.learning_rate"
            )
