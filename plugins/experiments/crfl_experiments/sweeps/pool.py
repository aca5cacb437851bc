"""Worker processes, each with one thread: jobs go in, what happens comes out."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from crfl_experiments.sweeps.cell_runner import Job

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
WORKER_END_SECONDS = 30.0
"""Seconds that a worker has to write its checkpoint when it is told to end."""


class Event(NamedTuple):
    """Event of a cell: "round", "finished" or "failed", and its details."""

    cell: str
    kind: str
    said: dict[str, Any]


class Worker:
    """One worker process. Its standard error is that of this process until it has a log."""

    def __init__(self) -> None:
        environment = os.environ | dict.fromkeys(ONE_THREAD, "1")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # what can be imported here can be there
        self._process = subprocess.Popen(
            [sys.executable, "-m", "crfl_experiments.sweeps.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C comes to the parent alone, which ends the workers in order
        )
        self.busy: list[str] = []
        self.has_ended = False
        self._rest = b""

    @property
    def output(self) -> int:
        """Return the file descriptor of its lines."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def keep_log(self, log: Path) -> None:
        """Set the file for the output of plugins.

        This is the first line that a worker reads.
        """
        self._tell(json.dumps(str(log.absolute())))

    def start(self, jobs: Sequence[Job], most_at_once: int) -> None:
        """Send the worker one cell, or a stack of cells.

        For a stack it may use several threads.
        """
        self.busy = [job.name for job in jobs]
        self._tell(jobs_to_line(jobs, most_at_once))

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: its output says so
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def read(self) -> Iterator[Event]:
        """Yield its events; if it died, its cells have failed."""
        content = os.read(self.output, 2**16)
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            said = json.loads(line)
            yield self._event(said.pop("cell"), said.pop("event"), said)
        if not content:
            self.has_ended = True
            for name in tuple(self.busy):
                yield self._event(name, "failed", {"reason": death_reason(self._process.wait())})

    def _event(self, name: str, kind: str, said: dict[str, Any]) -> Event:
        if kind in ("finished", "failed"):
            self.busy.remove(name)
        return Event(name, kind, said)

    def tell_to_end(self) -> None:
        """Ask it to save a checkpoint and end."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self) -> None:
        """Wait until it has ended; kill it after a while."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        try:
            self._process.wait(WORKER_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


EARLY_WORKERS: list[Worker] = []
"""Idle workers, started before their cells are known."""


@contextmanager
def start_worker_early() -> Iterator[None]:
    """Start a worker while this process still reads its input.

    The first pool takes it.
    """
    EARLY_WORKERS.append(Worker())
    try:
        yield
    finally:
        while EARLY_WORKERS:
            worker = EARLY_WORKERS.pop()
            worker.tell_to_end()
            worker.wait()


class Pool:
    """Number of workers; those that die are replaced. `most_at_once` is the number of threads for one stack."""

    def __init__(self, size: int, log: Path, most_at_once: int = 1) -> None:
        self._size = size
        self._log = log
        self._most_at_once = most_at_once
        self._workers: list[Worker] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.tell_to_end()
        for worker in self._workers:
            worker.wait()
        self._selector.close()

    @property
    def free(self) -> int:
        """Return how many workers could start a job now."""
        return self._size - sum(bool(worker.busy) for worker in self._workers)

    def start(self, jobs: Sequence[Job]) -> None:
        """Give jobs to an idle worker, or to a new one."""
        idle = [worker for worker in self._workers if not worker.busy and not worker.has_ended]
        worker = idle[0] if idle else self._hired()
        worker.start(jobs, self._most_at_once)

    def events(self, seconds: float) -> Iterator[Event]:
        """Yield the events of the next seconds."""
        for key, _ in self._selector.select(seconds):
            worker: Worker = key.data
            yield from worker.read()
            if worker.has_ended:
                self._selector.unregister(key.fileobj)
                worker.wait()
                self._workers.remove(worker)

    def _hired(self) -> Worker:
        worker = EARLY_WORKERS.pop() if EARLY_WORKERS else Worker()
        worker.keep_log(self._log)
        self._workers.append(worker)
        self._selector.register(worker.output, selectors.EVENT_READ, worker)
        return worker


def jobs_to_line(jobs: Sequence[Job], most_at_once: int = 1) -> str:
    """Write jobs as a line for a worker.

    Paths are absolute, because a worker may run in another folder.
    """
    plain = [
        {key: str(one.absolute()) if isinstance(one, Path) else one for key, one in job._asdict().items()}
        for job in jobs
    ]
    return json.dumps({"most_at_once": most_at_once, "jobs": plain})


def death_reason(status: int) -> str:
    """Explain why a process ended unexpectedly."""
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    hint = ": if memory ran out, use fewer --workers" if status == -9 else ": workers.log may say why"
    return f"its process {how}{hint}"
