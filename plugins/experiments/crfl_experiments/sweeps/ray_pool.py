"""Pool of workers in a Ray cluster: the same jobs and events as for processes of this machine."""

from __future__ import annotations

import json
import math
import platform
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crfl_engines.ray.cluster import CONNECTION, ClusterRequest, available_processors, import_ray

from crfl_core.errors import CrflWarning, OptionError, RunError
from crfl_experiments.sweeps.pool import WORKER_END_SECONDS, Event, jobs_to_line

if TYPE_CHECKING:
    from crfl_experiments.sweeps.cell_runner import Job

DEADLINE = 60.0
"""Seconds in which at least one worker must take a cell."""
TRIES = 3
"""Workers that may be lost with the same cell."""
STORE_MIB = 128
"""Shared memory of a cluster that is started for a sweep: hardly anything is sent."""


@contextmanager
def connect_to_cluster(workers: int | None) -> Iterator[int]:
    """Connect to a Ray cluster and yield its number of CPUs.

    This is the running cluster or the one of RAY_ADDRESS, else a new one.
    """
    try:
        CONNECTION.acquire(ClusterRequest("auto", workers or available_processors(), STORE_MIB))
    except OptionError as error:
        raise RunError(f"--engine ray: {error.message}") from error
    try:
        yield max(1, math.floor(import_ray().cluster_resources().get("CPU", 1)))
    finally:
        CONNECTION.release()


class ClusterWorker:
    """One worker: its cell or stack of cells, the reference to its work, and the last pending question."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.jobs: dict[str, Job] = {}
        self.work: Any = None
        self.asked: Any = None
        self.has_answered = False

    def start(self, jobs: Sequence[Job]) -> None:
        """Give it jobs."""
        self.jobs, self.work = {job.name: job for job in jobs}, self.handle.work.remote(jobs_to_line(jobs))
        self.asked = self.handle.take_messages.remote()

    def events(self, said: Sequence[dict[str, Any]]) -> Iterator[Event]:
        """Yield its messages as events of its cells."""
        self.has_answered = True
        for one in said:
            name = one.pop("cell")
            kind = one.pop("event")
            if name not in self.jobs:
                continue
            if kind in ("finished", "failed"):
                del self.jobs[name]
            yield Event(name, kind, one)


class RayPool:
    """Pool of at most `size` workers; cells of lost workers resume from their checkpoint on other workers."""

    def __init__(self, size: int, marker: Path) -> None:
        self._ray = import_ray()
        self._size = size
        self._marker = marker.absolute()
        self._workers: list[ClusterWorker] = []
        self._losses: Counter[str] = Counter()
        self._lost_workers = 0
        self._answered = time.monotonic()

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *_: object) -> None:
        busy = [worker for worker in self._workers if worker.jobs and worker.has_answered]
        for worker in busy:
            worker.handle.end.remote()
        if busy:
            self._ray.wait([worker.work for worker in busy], num_returns=len(busy), timeout=WORKER_END_SECONDS)
        for worker in self._workers:
            self._ray.kill(worker.handle)

    @property
    def free(self) -> int:
        """Return how many workers could start a job now."""
        return self._size - sum(bool(worker.jobs) for worker in self._workers)

    def start(self, jobs: Sequence[Job]) -> None:
        """Give jobs to an idle worker, or to a new one."""
        idle = [worker for worker in self._workers if not worker.jobs]
        (idle[0] if idle else self._hired()).start(jobs)

    def events(self, seconds: float) -> Iterator[Event]:
        """Yield the events of the next seconds."""
        busy = [worker for worker in self._workers if worker.jobs]
        if not busy:
            return
        self._ray.wait([worker.work for worker in busy], timeout=seconds)
        for worker in busy:
            yield from self._read_events(worker)
        if any(worker.has_answered for worker in busy):
            self._answered = time.monotonic()
        elif time.monotonic() > self._answered + DEADLINE:
            raise RunError(
                f"no worker of the Ray cluster took a cell within {DEADLINE:g} s: others may use all of its CPUs"
            )

    def _read_events(self, worker: ClusterWorker) -> Iterator[Event]:
        """Yield the events of a worker.

        Cells of a lost worker move to another one. A cell fails after too many losses.
        """
        errors = self._ray.exceptions.RayError
        try:
            has_ended = bool(self._ray.wait([worker.work], timeout=0)[0])
            if self._ray.wait([worker.asked], timeout=0)[0]:
                yield from worker.events(self._ray.get(worker.asked))
                worker.asked = worker.handle.take_messages.remote()
            if has_ended and worker.jobs:
                self._ray.get(worker.work)
                yield from worker.events(
                    self._ray.get(worker.handle.take_messages.remote(), timeout=WORKER_END_SECONDS)
                )
        except errors as error:
            yield from self._report_lost(worker, str(error).strip().partition("\n")[0])

    def _report_lost(self, worker: ClusterWorker, why: str) -> Iterator[Event]:
        """Move the cells of a lost worker to another one.

        Yield a failure for every cell with too many losses.
        """
        jobs = [*worker.jobs.values()]
        worker.jobs = {}
        self._ray.kill(worker.handle)
        self._workers.remove(worker)
        self._lost_workers += 1
        self._losses.update(job.name for job in jobs)
        for job in jobs:
            if self._losses[job.name] >= TRIES:
                yield Event(job.name, "failed", {"reason": f"{TRIES} workers were lost with it ({why})"})
        rest = [job for job in jobs if self._losses[job.name] < TRIES]
        if not rest:
            return
        if self._lost_workers == 1:
            warnings.warn(
                f"a worker of the Ray cluster is lost ({why}): its cell resumes from its checkpoint on another worker; "
                "further losses are not reported",
                CrflWarning,
                stacklevel=2,
            )
        self.start(rest)

    def _hired(self) -> ClusterWorker:
        options = {"num_cpus": 1, "max_concurrency": 2, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self._workers.append(ClusterWorker(self._ray.remote(**options)(CellActor).remote(str(self._marker))))
        return self._workers[-1]


class CellActor:
    """Actor that runs cells in one thread; in a second thread it reports progress and can be told to end."""

    def __init__(self, marker: str) -> None:
        self._marker = Path(marker)
        self._said: list[dict[str, Any]] = []
        self._must_end = False

    def work(self, line: str) -> None:
        """Run one job or a stack of jobs.

        `take_messages` reports how they end.
        """
        import torch

        from crfl_experiments.sweeps.worker import run_jobs

        torch.set_num_threads(1)
        if not self._marker.exists():
            why = "a sweep on several machines needs a folder on a file system that all of them share"
            for job in json.loads(line)["jobs"]:
                said = f"{platform.node()} does not see {self._marker.parent}: {why}"
                self._say(cell=job["name"], event="failed", reason=said)
            return
        try:
            run_jobs(line, self._say)
        except KeyboardInterrupt:  # told to end: the run has saved where it stands
            return

    def take_messages(self) -> list[dict[str, Any]]:
        """Return the messages since the last call."""
        said = self._said
        self._said = []
        return said

    def end(self) -> None:
        """Save and stop after the round in progress."""
        self._must_end = True

    def _say(self, **said: Any) -> None:
        if self._must_end:
            raise OSError("the sweep has ended")
        self._said.append(said)
