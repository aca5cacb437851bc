"""Clients trained in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import torch
from pydantic import Field, PrivateAttr

from crfl_core.extend import Engine, Job, LocalUpdates, TrainingTask

PARAMETERS_AT_ONCE = 2**26
"""How many parameters the models of clients may have that are trained at once, 256 MiB in single precision."""


def parts_of(task: TrainingTask, chunk_clients: int) -> list[slice]:
    """The participants of a round in chunks. Bits depend on this cut, so engines that share it agree in all of them."""
    clients, chunk = len(task.clients), max(1, min(chunk_clients, PARAMETERS_AT_ONCE // task.starts.shape[-1]))
    return [slice(first, min(first + chunk, clients)) for first in range(0, clients, chunk)]


class LentThreads:
    """PyTorch's number of threads, which all runs in a process share.

    While runs overlap, the last wish that is still open holds. When the last of them closes, the number is what it was
    before the first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wishes: list[int] = []
        self._before = 0

    def take(self, count: int) -> None:
        """Use this number from now on."""
        with self._lock:
            if not self._wishes:
                self._before = torch.get_num_threads()
            self._wishes.append(count)
            torch.set_num_threads(count)

    def give_back(self, count: int) -> None:
        """Do without it again."""
        with self._lock:
            self._wishes.remove(count)
            torch.set_num_threads(self._wishes[-1] if self._wishes else self._before)


LENT = LentThreads()


class Local(Engine):
    """Trains clients in this process, many at once in chunks of bounded memory."""

    threads: int | None = Field(
        None, ge=1, description="threads of PyTorch, for all runs in the process; unset: as many as it chooses"
    )
    chunk_clients: int = Field(
        64, ge=1, description="clients trained at once; fewer if their models have more than 67 million parameters"
    )

    _job: Job | None = PrivateAttr(default=None)

    def open(self, job: Job) -> None:
        """Remember the job; take the threads."""
        self._job = job
        if self.threads is not None:
            LENT.take(self.threads)

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        """One chunk after the other."""
        assert self._job is not None
        for part in parts_of(task, self.chunk_clients):
            yield self._job.train(task, part)

    def close(self) -> None:
        """Give the threads back."""
        if self.threads is not None:
            LENT.give_back(self.threads)
