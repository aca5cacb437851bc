"""Engine `local`: clients trained in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import torch
from pydantic import Field, PrivateAttr

from crfl_core.extend import Engine, Job, LocalUpdates, TrainingTask


class ThreadCount:
    """Number of threads of PyTorch, which all runs in a process share.

    While runs overlap, the number that was asked for last holds. When the last run closes, the number is as before the
    first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wishes: list[int] = []
        self._before = 0

    def acquire(self, count: int) -> None:
        """Use this number from now on."""
        with self._lock:
            if not self._wishes:
                self._before = torch.get_num_threads()
            self._wishes.append(count)
            torch.set_num_threads(count)

    def release(self, count: int) -> None:
        """Return to the number before."""
        with self._lock:
            self._wishes.remove(count)
            torch.set_num_threads(self._wishes[-1] if self._wishes else self._before)


THREAD_COUNT = ThreadCount()


class Local(Engine):
    """Trains clients in this process, many at once in chunks of bounded memory."""

    threads: int | None = Field(
        None, ge=1, description="threads of PyTorch, for all runs in the process; unset: as many as it chooses"
    )
    chunk_clients: int | None = Field(
        None,
        ge=1,
        description="clients trained at once, fewer if their models have more than 67 million parameters; unset: 64, "
        "or up to 256 if models and batches are small",
    )

    _job: Job | None = PrivateAttr(default=None)

    def open(self, job: Job) -> None:
        """Store the job, and set the number of threads."""
        self._job = job
        if self.threads is not None:
            THREAD_COUNT.acquire(self.threads)

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        """Train one chunk after the other, and chunks of small groups together."""
        assert self._job is not None
        for parts in task.bundles(self.chunk_clients):
            yield from self._job.train_parts(task, parts)

    def close(self) -> None:
        """Drop the job, which holds all data, and return the threads."""
        self._job = None
        if self.threads is not None:
            THREAD_COUNT.release(self.threads)
