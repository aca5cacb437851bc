"""Worker of the engine `ray`, and the plain arrays that travel, which Ray does not copy."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import crfl_core
from crfl_core.extend import (
    BatchMeasurements,
    Clients,
    CountingTask,
    Job,
    LocalUpdates,
    NoisyModels,
    RunError,
    TrainingTask,
    open_job,
)

Columns = dict[str, NDArray[Any]]
DONE = "done"


class SentTask(NamedTuple):
    """A `TrainingTask` without its participants, which mostly stay the same from round to round."""

    number: int
    starts: NDArray[Any]
    attacked: bool
    attack_state: Columns | None
    memory: Columns
    mean: Columns
    origins: NDArray[Any] | None = None

    @classmethod
    def from_task(cls, task: TrainingTask) -> SentTask:
        """Convert a task to what is sent."""
        state = None if task.attack_state is None else {name: to_array(one) for name, one in task.attack_state.items()}
        memory = arrays_of(task.memory)
        origins = None if task.origins is None else to_array(task.origins)
        return cls(task.number, to_array(task.starts), task.attacked, state, memory, arrays_of(task.mean), origins)

    def to_task(self, columns: Mapping[str, NDArray[Any]]) -> TrainingTask:
        """Convert it back, with the participants."""
        state = None if self.attack_state is None else {name: to_tensor(one) for name, one in self.attack_state.items()}
        starts = to_tensor(self.starts)
        clients = Clients(**columns)
        memory = {name: to_tensor(one) for name, one in self.memory.items()}
        mean = {name: to_tensor(one) for name, one in self.mean.items()}
        origins = None if self.origins is None else to_tensor(self.origins)
        return TrainingTask(self.number, starts, clients, self.attacked, state, memory, mean, origins)


class SentCount(NamedTuple):
    """A `CountingTask` with the models as an array."""

    test_set: str
    samples: int
    models: NDArray[Any]
    others: dict[str, Any]

    @classmethod
    def from_task(cls, task: CountingTask) -> SentCount:
        """Convert a task to what is sent."""
        others = {name: value for name, value in vars(task.voters).items() if name != "models"}
        return cls(task.test_set, task.samples, to_array(task.voters.models), others)

    def to_task(self) -> CountingTask:
        """Convert it back."""
        return CountingTask(self.test_set, self.samples, NoisyModels(to_tensor(self.models), **self.others))


Answer = tuple[NDArray[Any], Columns, Columns]
"""Updates and measured poison of some participants, and what they keep."""


def receive_updates(part: slice, answer: Answer) -> LocalUpdates:
    """Copy a worker's answer into memory of this process.

    Ray's memory is free again at once.
    """
    updates, measurements, memory = answer
    return LocalUpdates(
        part,
        to_tensor(updates),
        BatchMeasurements(**{name: one.copy() for name, one in measurements.items()}),
        {name: to_tensor(one) for name, one in memory.items()},
    )


class Worker:
    """Process that opens the job of a run once, and then does parts of it in one thread."""

    def __init__(self) -> None:
        self._job: Job | None = None

    def open(self, specification: str, versions: Mapping[str, str]) -> str:
        """Rebuild the job with data of this machine.

        Return the machine and the process. `versions` are those of the run that sends work: other versions would give
        other bits.
        """
        torch.set_num_threads(1)
        machine = platform.node()
        for name, there in versions.items():
            if (here := local_versions()[name]) != there:
                raise RunError(f"{machine} has {name} {here}, and the run was started with {there}: install the same")
        self._job = open_job(specification)
        return f"{machine}, process {os.getpid()}"

    def train(self, sent: SentTask, clients: Mapping[str, NDArray[Any]], part: slice) -> tuple[str, Answer]:
        """Train the participants `part` of a round.

        The answer has a word before it, which Ray sends at once.
        """
        assert self._job is not None
        trained = self._job.train(sent.to_task(clients), part)
        return DONE, (to_array(trained.updates), vars(trained.measurements), arrays_of(trained.memory))

    def count(self, sent: SentCount, part: slice) -> tuple[str, NDArray[np.int64]]:
        """Count the votes on the test samples `part`."""
        assert self._job is not None
        return DONE, self._job.count_votes(sent.to_task(), part).counts


def local_versions() -> dict[str, str]:
    """Return the versions that bits depend on."""
    versions = {"crfl": crfl_core.__version__, "torch": torch.__version__, "numpy": np.__version__}
    return {name: str(version) for name, version in versions.items()}


def to_array(values: Tensor) -> NDArray[Any]:
    """Convert a tensor to the array that is sent."""
    sent: NDArray[Any] = values.detach().cpu().numpy()
    return sent


def arrays_of(state: Mapping[str, Tensor]) -> Columns:
    """Convert named tensors to the arrays that are sent."""
    return {name: to_array(one) for name, one in state.items()}


def to_tensor(values: NDArray[Any]) -> Tensor:
    """Copy an array to a tensor.

    Ray's arrays are read-only, and pinned while in use.
    """
    return torch.from_numpy(values.copy())
