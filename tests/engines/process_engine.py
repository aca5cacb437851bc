"""An engine with worker processes, as a third party would write one. In a file of its own, so that workers find it."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch
from pydantic import Field, PrivateAttr

from crfl_core.extend import Engine, Job, LocalUpdates, TrainingTask, open_job

worker_job: Job | None = None


def start_worker(specification: str) -> None:
    """Rebuild the job once in every worker."""
    global worker_job
    torch.set_num_threads(1)
    worker_job = open_job(specification)


def work(request: bytes) -> bytes:
    """Train one part of a round. Bytes, because tensors would be handed over as shared memory that has to be freed."""
    assert worker_job is not None
    task, part = pickle.loads(request)
    return pickle.dumps(worker_job.train(task, part))


class ProcessEngine(Engine):
    """Trains chunks of clients in processes that share nothing but the text of the job."""

    workers: int = Field(2, ge=1)
    chunk_clients: int = Field(3, ge=1)

    _pool: ProcessPoolExecutor | None = PrivateAttr(default=None)

    def open(self, job: Job) -> None:
        self._pool = ProcessPoolExecutor(
            self.workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=start_worker,
            initargs=(job.specification,),
        )

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        """The parts, in the order in which they are ready."""
        assert self._pool is not None
        clients = len(task.clients)
        parts = [
            slice(first, min(first + self.chunk_clients, clients)) for first in range(0, clients, self.chunk_clients)
        ]
        for ready in as_completed([self._pool.submit(work, pickle.dumps((task, part))) for part in parts]):
            trained: LocalUpdates = pickle.loads(ready.result())
            yield trained

    def close(self) -> None:
        assert self._pool is not None
        self._pool.shutdown()
