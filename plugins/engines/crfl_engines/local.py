"""Clients trained in this process."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import Field, PrivateAttr

from crfl_core.extend import Engine, Job, LocalUpdates, TrainingTask


class Local(Engine):
    """Trains clients in this process, many at once in chunks of bounded memory."""

    threads: int | None = Field(None, ge=1, description="threads of PyTorch; unset: as many as it chooses")
    chunk_clients: int = Field(64, ge=1, description="clients trained at once")

    _job: Job | None = PrivateAttr(default=None)
    _threads_before: int = PrivateAttr(default=1)

    def open(self, job: Job) -> None:
        """Remember the job; take the threads."""
        self._job = job
        self._threads_before = torch.get_num_threads()
        if self.threads is not None:
            torch.set_num_threads(self.threads)

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        """One chunk after the other."""
        assert self._job is not None
        for first in range(0, len(task.clients), self.chunk_clients):
            last = min(first + self.chunk_clients, len(task.clients))
            yield self._job.train(task, slice(first, last))

    def close(self) -> None:
        """Give the threads back."""
        torch.set_num_threads(self._threads_before)
