"""What an engine hands in: checked, put into order, and gathered for those who need all of it at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from crfl_core.errors import PluginFailure
from crfl_core.plugin_api.engine import Engine
from crfl_core.plugin_api.plugin_errors import errors_of, source_location
from crfl_core.plugin_loading.mutation_guard import guard_inputs
from crfl_core.records.round import BatchMeasurements, LocalUpdates, TrainingTask
from crfl_core.training.update_memory import new_rows


def collect(engine: Engine, task: TrainingTask) -> Iterator[LocalUpdates]:
    """The parts of a round, in order of participants, each checked; they may come in any order.

    A part with updates of the wrong shape counts as non-finite: the clients sent it. Every participant must be trained
    exactly once from every model, which is the engine's affair.
    """
    clients = len(task.clients)
    seen = np.zeros(clients, np.int64)
    reached = 0
    waiting: dict[int, LocalUpdates] = {}
    who = f"engine {engine.full_name}: train() ({source_location(type(engine).train)})"
    with errors_of("engine", engine), guard_inputs(who, task):
        for trained in engine.train(task):
            if not isinstance(trained, LocalUpdates):
                raise PluginFailure(f"the engine must yield LocalUpdates, found {type(trained).__name__}")
            rows = range(clients)[trained.part]
            seen[trained.part] += 1
            if not rows or rows.step != 1 or (seen[trained.part] > 1).any():
                break
            waiting[rows.start] = well_formed(trained, rows, task)
            while reached in waiting:
                ready = waiting.pop(reached)
                yield ready
                reached = ready.part.stop
    if (seen != 1).any() or reached != clients:
        missing = task.clients.ids[np.append(np.flatnonzero(seen != 1), reached)[0]]
        raise PluginFailure(f"the engine must train every participant once: client {missing} in round {task.number}")


def well_formed(trained: LocalUpdates, rows: range, task: TrainingTask) -> LocalUpdates:
    """The part that an engine returned for these participants, as the server can use it."""
    (replicas, _, size), poisoning, updates = task.starts.shape, trained.measurements, trained.updates.to(task.starts)
    if not isinstance(poisoning, BatchMeasurements) or {len(column) for column in vars(poisoning).values()} != {
        len(rows)
    }:
        raise PluginFailure(
            f"the engine must return the measured poison of each participant, found others in round {task.number}"
        )
    if updates.ndim == 3 and len(updates) != replicas:
        raise PluginFailure(
            f"the engine must train every participant from all {replicas} models, found {len(updates)} in round "
            f"{task.number}"
        )
    if updates.shape != (replicas, len(rows), size):
        updates = task.starts.new_full((replicas, len(rows), size), torch.nan)
    return LocalUpdates(slice(rows.start, rows.stop), updates, poisoning)


class Gathering:
    """All parts of a group as one. Each is copied as it comes: an engine may use its memory again for the next."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._updates: Tensor | None = None
        self._columns = {name: column.copy() for name, column in vars(BatchMeasurements.clean(clients)).items()}

    def add(self, part: LocalUpdates) -> LocalUpdates | None:
        """One part more, in order; everything, once this was the last."""
        if part.part == slice(0, self._clients):
            return part
        if self._updates is None:
            self._updates = new_rows(part.updates, len(part.updates), self._clients, part.updates.shape[2])
        self._updates[:, part.part] = part.updates
        for name, column in self._columns.items():
            column[part.part] = getattr(part.measurements, name)
        if part.part.stop < self._clients:
            return None
        return LocalUpdates(slice(0, self._clients), self._updates, BatchMeasurements(**self._columns))


def gathered(parts: Iterable[LocalUpdates], clients: int) -> LocalUpdates:
    """All parts of a round, in order, as one."""
    gathering = Gathering(clients)
    whole = [gathering.add(part) for part in parts][-1]
    assert whole is not None
    return whole
