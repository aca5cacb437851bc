"""Clients trained by the workers of a Ray cluster: processes on this machine, or on many."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field, PrivateAttr

from crfl_core.extend import Clients, CountingTask, Engine, Job, LocalUpdates, PartialCount, TrainingTask
from crfl_engines.ray.cluster import CONNECTION, Wish, imported, processors

PLACES = r"^(auto|local|[^\s:/]+:\d{1,5})$"


class Kept(NamedTuple):
    """The participants of a round, and where they lie in Ray's store."""

    clients: Clients
    place: Any


class Ray(Engine):
    """Trains clients in workers of a Ray cluster, with the bits of `local` for the same chunks and one thread.

    Every worker opens the job once, with data from its own machine; a round sends the model and brings back updates. A
    worker that dies is replaced, and its parts are done again. Needs an extra: `pip install "crfl[ray]"`.
    """

    address: str = Field(
        "auto",
        pattern=PLACES,
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
    min_workers: int = Field(1, ge=1, description="how many workers must be left after faults for the run to go on")
    store_mib: int = Field(512, ge=80, description="shared memory of a cluster that is started for the run, in MiB")

    _job: Job | None = PrivateAttr(default=None)
    _crew: Any = PrivateAttr(default=None)
    _kept: Kept | None = PrivateAttr(default=None)

    def open(self, job: Job) -> None:
        """Remember the job. Workers are hired when there is something to do."""
        imported()
        self._job = job

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        """The parts, as they are ready. The model is put into Ray's store once."""
        from crfl_engines.ray.worker import SentTask, received

        crew = self._at_work()
        ray = imported()
        sent = ray.put(SentTask.of(task)), self._place_of(task.clients)
        for part, answer in crew.work("train", sent, task.parts(self.chunk_clients)):
            trained = received(part, answer)
            del answer
            yield trained

    def count_votes(self, task: CountingTask) -> Iterator[PartialCount]:
        """The votes on a test set, a share for every worker: each of them draws all noisy models once."""
        from crfl_engines.ray.worker import SentCount

        blocks = task.blocks
        if len(blocks) == 1:  # the server counts one of them in any case
            return
        crew = self._at_work()
        share = math.ceil(len(blocks) / len(crew))
        firsts = range(0, len(blocks), share)
        parts = [slice(blocks[first].start, blocks[first : first + share][-1].stop) for first in firsts]
        for part, counts in crew.work("count", (imported().put(SentCount.of(task)),), parts):
            yield PartialCount(part, counts.copy())

    def close(self) -> None:
        """Let the workers go, and end what was begun here."""
        crew = self._crew
        self._crew = None
        self._kept = None
        self._job = None
        if crew is not None:
            try:
                crew.dismiss()
            finally:
                CONNECTION.give_back()

    def _at_work(self) -> Any:
        """The workers, hired when they are first needed."""
        if self._crew is None:
            from crfl_engines.ray.worker_pool import WorkerPool

            assert self._job is not None
            wanted = self.workers or processors()
            CONNECTION.take(Wish(self.address, wanted, self.store_mib))
            try:
                if self.workers is None:
                    wanted = max(1, math.floor(imported().cluster_resources().get("CPU", 1)))
                self._crew = WorkerPool(self._job.specification, wanted, min(self.min_workers, wanted), self.deadline)
            except BaseException:
                CONNECTION.give_back()
                raise
            self._crew.gather()
        return self._crew

    def _place_of(self, clients: Clients) -> Any:
        """Where the participants lie; those of the last round, if they are the same."""
        if self._kept is None or not same(self._kept.clients, clients):
            self._kept = Kept(clients, imported().put(vars(clients)))
        return self._kept.place


def same(one: Clients, other: Clients) -> bool:
    """Whether two rounds have the same participants, who do the same."""
    return all(np.array_equal(column, vars(other)[name]) for name, column in vars(one).items())
