"""Clients trained by the workers of a Ray cluster: processes on this machine, or on many."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field, PrivateAttr

from crfl_core.extend import Clients, CountingTask, CrflWarning, Engine, Job, LocalUpdates, PartialCount, TrainingTask
from crfl_engines.ray.cluster import (
    CONNECTION,
    ClusterRequest,
    available_processors,
    gone_message,
    import_ray,
    is_reachable,
)

ADDRESS_FORMS = r"^(auto|local|[^\s:/]+:\d{1,5})$"


class StoredClients(NamedTuple):
    """Participants of a round, and their place in Ray's store."""

    clients: Clients
    place: Any


class Ray(Engine):
    """Trains clients in workers of a Ray cluster, with the bits of `local` for the same chunks and one thread.

    Every worker opens the job once, with data from its own machine; a round sends the model and brings back updates. A
    worker that dies is replaced, and its parts are done again. Needs an extra: `pip install "crfl[ray]"`.
    """

    address: str = Field(
        "auto",
        pattern=ADDRESS_FORMS,
        description="cluster: `local` is one of this machine alone, started for the run; `host:port` one that runs; "
        "`auto` the one that runs here or that RAY_ADDRESS names, else as `local`",
    )
    workers: int | None = Field(
        None, ge=1, description="processes that train, each with one thread; unset: one per CPU of the cluster"
    )
    chunk_clients: int | None = Field(
        None,
        ge=1,
        description="clients trained at once, fewer if their models have more than 67 million parameters; unset: 64, "
        "or up to 256 if models and batches are small",
    )
    deadline: float = Field(60.0, gt=0, description="seconds that workers have to appear before the run is stopped")
    min_workers: int = Field(1, ge=1, description="how many workers must be left after faults for the run to continue")
    store_mib: int = Field(512, ge=80, description="shared memory of a cluster that is started for the run, in MiB")

    _job: Job | None = PrivateAttr(default=None)
    _pool: Any = PrivateAttr(default=None)
    _kept: StoredClients | None = PrivateAttr(default=None)

    def open(self, job: Job) -> None:
        """Store the job. Workers start when there is something to do."""
        import_ray()
        self._job = job

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        """Yield the parts as they are ready.

        The engine puts the model into Ray's store once.
        """
        from crfl_engines.ray.worker import SentTask, receive_updates

        pool = self._start_workers()
        ray = import_ray()
        sent = ray.put(SentTask.from_task(task)), self._store_clients(task.clients)
        for part, answer in pool.run("train", sent, task.parts(self.chunk_clients)):
            trained = receive_updates(part, answer)
            del answer
            yield trained

    def count_votes(self, task: CountingTask) -> Iterator[PartialCount]:
        """Yield the votes on a test set, one share for every worker.

        Each worker draws all noisy models once.
        """
        from crfl_engines.ray.worker import SentCount

        blocks = task.blocks
        if len(blocks) == 1:  # the server counts one of them in any case
            return
        pool = self._start_workers()
        share = math.ceil(len(blocks) / len(pool))
        firsts = range(0, len(blocks), share)
        parts = [slice(blocks[first].start, blocks[first : first + share][-1].stop) for first in firsts]
        for part, counts in pool.run("count", (import_ray().put(SentCount.from_task(task)),), parts):
            yield PartialCount(part, counts.copy())

    def close(self) -> None:
        """Stop the workers.

        If the cluster was started for this run, stop it as well.
        """
        pool = self._pool
        self._pool = None
        self._kept = None
        self._job = None
        if pool is not None:
            try:
                if is_reachable(CONNECTION.address):
                    pool.stop()
                else:
                    warnings.warn(f"engine: {gone_message(CONNECTION.address)}", CrflWarning, stacklevel=2)
            finally:
                CONNECTION.release()

    def _start_workers(self) -> Any:
        """Return the workers, started when they are first needed."""
        if self._pool is None:
            from crfl_engines.ray.worker_pool import WorkerPool

            assert self._job is not None
            wanted = self.workers or available_processors()
            CONNECTION.acquire(ClusterRequest(self.address, wanted, self.store_mib))
            try:
                if self.workers is None:
                    wanted = max(1, math.floor(import_ray().cluster_resources().get("CPU", 1)))
                least = min(self.min_workers, wanted)
                self._pool = WorkerPool(
                    self._job.specification, wanted, least, self.deadline, address=CONNECTION.address
                )
            except BaseException:
                CONNECTION.release()
                raise
            self._pool.start()
        return self._pool

    def _store_clients(self, clients: Clients) -> Any:
        """Put the participants into Ray's store.

        If they are those of the last round, the stored ones are used again.
        """
        if self._kept is None or not has_same_clients(self._kept.clients, clients):
            self._kept = StoredClients(clients, import_ray().put(vars(clients)))
        return self._kept.place


def has_same_clients(one: Clients, other: Clients) -> bool:
    """Check whether two rounds have the same participants, who do the same."""
    return all(np.array_equal(column, vars(other)[name]) for name, column in vars(one).items())
