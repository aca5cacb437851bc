"""A real Ray cluster of two nodes on this machine, which leaves nothing behind."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from crfl_engines.ray.cluster import preserve_process_state

LONGEST = 200
"""Seconds that a test with Ray may take; afterwards it fails, and a little later its process ends."""
ATTEMPTS = 3
PATIENT = {"RAY_health_check_failure_threshold": "40"}
"""Ray takes nodes for dead that a busy machine keeps from answering for some seconds."""
MARK = "CRFL_TESTED_BY"
STORE = 90 * 2**20


def ray_or_skip() -> Any:
    """The module `ray`; without it the test is skipped, and fails where everything must be there."""
    from crfl_engines.ray.cluster import RAY_ENVIRONMENT

    os.environ.update(RAY_ENVIRONMENT | PATIENT)
    return __import__("ray") if os.environ.get("CI") else pytest.importorskip("ray", reason="pip install 'crfl[ray]'")


@pytest.fixture(autouse=True)
def hard_deadline(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test with Ray waits for ever."""
    if request.node.get_closest_marker("ray") is None:
        yield
        return

    def late(*_: object) -> None:
        raise TimeoutError(f"{request.node.name} takes longer than {LONGEST} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    faulthandler.dump_traceback_later(LONGEST + 30, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def marked(mark: str) -> dict[int, str]:
    """The processes, by number, that were started with a mark in their environment; without this one."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended, or belongs to another user
            continue
    found.pop(os.getpid(), None)
    return found


def all_ended(mark: str, seconds: float = 20) -> dict[int, str]:
    """What is left of the processes with a mark after some seconds at most."""
    end = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < end:
        time.sleep(0.2)
    return left


@contextmanager
def ended(process: Popen[str]) -> Iterator[Popen[str]]:
    """A process that is gone afterwards, whatever happens."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A mark that every process has which is started from now on."""
    chosen = uuid.uuid4().hex
    monkeypatch.setenv(MARK, chosen)
    return chosen


class Nodes:
    """Two nodes with one CPU each; the second may be killed."""

    def __init__(self, ray: Any, mark: str) -> None:
        from ray.cluster_utils import Cluster

        self.ray, self.mark = ray, mark
        head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
        with preserve_process_state():
            self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self._second: Any = None
        self.complete()

    @property
    def address(self) -> str:
        """Where drivers find it."""
        return str(self._cluster.address)

    def complete(self) -> None:
        """Have a second node, whose processes have the mark of the first whenever it is started."""
        if self._second is None:
            with preserve_process_state(), pytest.MonkeyPatch.context() as patch:
                patch.setenv(MARK, self.mark)
                self._second = self._cluster.add_node(num_cpus=1, object_store_memory=STORE)

    def kill_the_second(self) -> None:
        """End it without notice."""
        second, self._second = self._second, None
        self._cluster.remove_node(second, allow_graceful=False)

    def engine(self, **options: Any) -> dict[str, Any]:
        """The table of an engine that uses it."""
        return {"type": "ray", "address": self.address, "workers": 2, "chunk_clients": 3, "deadline": 60} | options

    def shutdown(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Nodes]:
    """One cluster for all tests, since it takes seconds to start. Nothing of it may be left."""
    ray = ray_or_skip()
    for attempt in range(ATTEMPTS):
        chosen = uuid.uuid4().hex
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(MARK, chosen)
            try:
                nodes = Nodes(ray, chosen)
                break
            except Exception:  # Ray gives its processes half a minute, which a busy machine may need for other things
                if attempt == ATTEMPTS - 1:
                    raise
    yield nodes
    nodes.shutdown()
    assert all_ended(chosen) == {}


@pytest.fixture
def two_nodes(cluster: Nodes) -> Iterator[Nodes]:
    """The cluster with both nodes. Whatever a test does, no driver is connected and no actor alive afterwards."""
    cluster.complete()
    with preserve_process_state():
        yield cluster
    assert not cluster.ray.is_initialized()
    assert left_at_work(cluster) == []


def left_at_work(cluster: Nodes, seconds: float = 20) -> list[str]:
    """The actors of a cluster that are still there after some seconds."""
    end = time.monotonic() + seconds
    while True:
        left = [said for said in marked(cluster.mark).values() if said.startswith(("ray::Worker", "ray::CellActor"))]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.2)
