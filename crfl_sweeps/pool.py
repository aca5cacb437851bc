"""Worker processes, each with one thread: jobs go in, what happens comes out."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from crfl_sweeps.running import Job

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
PATIENCE = 30.0
"""Seconds that a worker has to write its checkpoint when it is told to end."""


class Event(NamedTuple):
    """Something that happened to a cell: "round", "lent", "finished" or "failed", and what is said about it."""

    cell: str
    kind: str
    said: dict[str, Any]


class Worker:
    """One process."""

    def __init__(self, log: Path) -> None:
        environment = os.environ | dict.fromkeys(ONE_THREAD, "1")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # what can be imported here can be there
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "crfl_sweeps.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,  # Ctrl-C comes to the parent alone, which ends the workers in order
            )
        self.job: Job | None = None
        self.has_ended = False
        self._rest = b""

    @property
    def output(self) -> int:
        """Where its lines come from."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def start(self, job: Job) -> None:
        """Give it something to do."""
        self.job = job
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: its output says so
            self._process.stdin.write(line_of(job).encode() + b"\n")
            self._process.stdin.flush()

    def read(self) -> Iterator[Event]:
        """What it says; that it died counts as the failure of its job."""
        told = os.read(self.output, 2**16)
        *lines, self._rest = (self._rest + told).split(b"\n")
        for line in lines:
            said = json.loads(line)
            yield self._event(said.pop("event"), said)
        if not told:
            self.has_ended = True
            if self.job is not None:
                yield self._event("failed", {"reason": death(self._process.wait())})

    def _event(self, kind: str, said: dict[str, Any]) -> Event:
        assert self.job is not None
        name = self.job.name
        if kind in ("finished", "failed"):
            self.job = None
        return Event(name, kind, said)

    def tell_to_end(self) -> None:
        """Ask it to save where it stands."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self) -> None:
        """Wait until it has ended; not for ever."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Pool:
    """A number of workers; those that die are replaced."""

    def __init__(self, size: int, log: Path) -> None:
        self._size, self._log = size, log
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
        """How many jobs could be started now."""
        return self._size - sum(worker.job is not None for worker in self._workers)

    def start(self, job: Job) -> None:
        """Give a job to a worker that has none, a new one if there are not enough."""
        idle = [worker for worker in self._workers if worker.job is None and not worker.has_ended]
        worker = idle[0] if idle else self._hired()
        worker.start(job)

    def events(self, seconds: float) -> Iterator[Event]:
        """What happens within some seconds at most."""
        for key, _ in self._selector.select(seconds):
            worker: Worker = key.data
            yield from worker.read()
            if worker.has_ended:
                self._selector.unregister(key.fileobj)
                worker.wait()
                self._workers.remove(worker)

    def _hired(self) -> Worker:
        worker = Worker(self._log)
        self._workers.append(worker)
        self._selector.register(worker.output, selectors.EVENT_READ, worker)
        return worker


def line_of(job: Job) -> str:
    """A job as a line that a worker understands."""
    return json.dumps({key: str(one) if isinstance(one, Path) else one for key, one in job._asdict().items()})


def death(status: int) -> str:
    """Why a process ended that should not have."""
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    hint = ": if memory ran out, use fewer --workers" if status == -9 else ": workers.log may say why"
    return f"its process {how}{hint}"
