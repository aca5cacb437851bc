"""The engine `ray` when workers and nodes die in the middle of a run, and when people end it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from crfl_engines.ray.cluster import is_reachable
from crfl_engines.ray.worker_pool import MAX_TRIES, PartQueue, WorkerPool
from pydantic import PrivateAttr

import crfl_core
from crfl_core.extend import CrflWarning, RoundRecord, RunError, Tracker, hookimpl
from tests.oracle import OTHER_ENGINE, contents, tiny
from tests.ray_nodes import Nodes, all_ended, ended, marked, ray_or_skip

pytestmark = [pytest.mark.ray, pytest.mark.slow]
ray = ray_or_skip()

CONFIG = tiny(rounds=6, storage={"checkpoint_seconds": 0, "figures": []}, certificates=["paper"])


class After(Tracker):
    """Does something when a round is over."""

    _number: int = PrivateAttr(default=0)
    _action: Any = PrivateAttr(default=None)

    @classmethod
    def round(cls, number: int, action: Callable[[], None]) -> After:
        """A tracker that acts after this round."""
        tracker = cls()
        tracker._configured_as, tracker._number, tracker._action = "after", number, action
        return tracker

    @hookimpl
    def crfl_round_finished(self, record: RoundRecord) -> None:
        if record.round == self._number:
            self._action()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the run that nothing happens to."""
    config = CONFIG | {"engine": {"type": "local", "threads": 1, "chunk_clients": 1}}
    return contents(crfl_core.run(config, out=tmp_path_factory.mktemp("local") / "run").path)


def assert_same(path: Path, local: dict[str, bytes]) -> None:
    """The run has the bits of the undisturbed one."""
    found = contents(path)
    assert found.keys() == local.keys()
    assert [name for name in local if local[name] != found[name]] == OTHER_ENGINE


def workers(cluster: Nodes) -> list[int]:
    """The processes that train."""
    return [number for number, command in marked(cluster.mark).items() if command.startswith("ray::Worker")]


def told(caught: list[warnings.WarningMessage]) -> list[str]:
    """What was said about lost workers."""
    return [str(one.message) for one in caught if "a worker is lost" in str(one.message)]


def test_a_node_that_is_killed_in_the_middle_changes_no_bit(
    two_nodes: Nodes, tmp_path: Path, local: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """One worker is left, and no other can come: the run goes on with it, and says so once, not among its results."""
    engine = two_nodes.engine(chunk_clients=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = crfl_core.run(
            CONFIG | {"engine": engine},
            out=tmp_path / "run",
            trackers=[After.round(2, two_nodes.kill_the_second)],
        )
    assert len(told(caught)) == 1
    assert "its parts are done again by others, which changes no bit" in told(caught)[0]
    assert capsys.readouterr().out == ""
    assert_same(run.path, local)


def test_a_worker_that_is_killed_is_replaced_and_changes_no_bit(
    two_nodes: Nodes, tmp_path: Path, local: dict[str, bytes]
) -> None:
    """Twice, and the second time all of them at once."""

    def kill(most: int) -> None:
        for number in workers(two_nodes)[:most]:
            os.kill(number, signal.SIGKILL)

    trackers = [After.round(1, lambda: kill(1)), After.round(3, lambda: kill(2))]
    with pytest.warns(CrflWarning, match="a worker is lost"):
        run = crfl_core.run(
            CONFIG | {"engine": two_nodes.engine(chunk_clients=1)}, out=tmp_path / "run", trackers=trackers
        )
    assert_same(run.path, local)


def test_too_few_workers_after_a_fault_stop_the_run_which_resumes(
    two_nodes: Nodes, tmp_path: Path, local: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = WorkerPool.start

    def impatient(self: WorkerPool) -> None:
        start(self)
        self._deadline = 3.0

    with monkeypatch.context() as patch:
        patch.setattr(WorkerPool, "start", impatient)
        trackers = [After.round(2, two_nodes.kill_the_second), After.round(3, lambda: time.sleep(4))]
        engine = two_nodes.engine(chunk_clients=1, min_workers=2)
        with (
            pytest.warns(CrflWarning, match="a worker is lost"),
            pytest.raises(RunError, match="1 of 2 workers were there within 3 s"),
        ):
            crfl_core.run(CONFIG | {"engine": engine}, out=tmp_path / "run", trackers=trackers)
    two_nodes.complete()
    assert_same(crfl_core.resume(tmp_path / "run", trust=True).path, local)


@pytest.mark.parametrize(
    ("number", "status", "own"), [(signal.SIGINT, 130, True), (signal.SIGTERM, 143, False)], ids=["ctrl-c", "terminate"]
)
def test_ending_a_run_ends_its_workers_and_its_cluster(
    two_nodes: Nodes, tmp_path: Path, mark: str, number: signal.Signals, status: int, own: bool
) -> None:
    """Ctrl-C goes to all processes of a terminal at once. A cluster that was there before is there afterwards."""
    engine = two_nodes.engine(workers=1) | ({"address": "local"} if own else {})
    (tmp_path / "run.toml").write_text(tomli_w.dumps(CONFIG | {"rounds": 2000, "engine": engine}))
    command = [sys.executable, "-m", "crfl_core", "run", "run.toml", "--out", "run", "--quiet"]
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE, text=True)
    rounds = tmp_path / "run" / "rounds.jsonl"
    with ended(process):
        while process.poll() is None and not (rounds.exists() and rounds.read_text().count("\n") > 2):
            time.sleep(0.1)
        os.killpg(process.pid, number)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == status, said
    assert "Traceback" not in said
    assert all_ended(mark) == {}
    assert marked(two_nodes.mark)


def test_parts_are_handed_out_in_order_and_not_far_ahead() -> None:
    shift = PartQueue([slice(one, one + 1) for one in range(5)])
    assert [shift.take(3) for _ in range(4)] == [0, 1, 2, None]
    shift.store(2, "updates")
    assert shift.take(3) is None  # the first is still missing
    shift.store(0, "updates")
    assert shift.next == 0
    shift.finish_next()
    assert [shift.take(3), shift.take(3)] == [3, None]
    shift.requeue([1], "its node burnt down")
    assert shift.take(3) == 1
    for number in (1, 2, 3):
        shift.store(number, "updates")
    shift.requeue([2], "its updates were lost")
    shift.finish_next()
    assert shift.next is None
    assert shift.take(3) == 2
    shift.store(2, "updates")
    shift.finish_next()
    shift.finish_next()
    assert shift.take(3) == 4
    assert not shift.is_over
    shift.store(4, "updates")
    shift.finish_next()
    assert shift.is_over


def test_a_part_that_costs_one_worker_after_the_other_stops_the_run() -> None:
    shift = PartQueue([slice(0, 64), slice(64, 100)])
    for attempt in range(MAX_TRIES - 1):
        shift.requeue([0, 1] if attempt == 0 else [1], "no memory")
    with pytest.raises(RunError, match=r"3 workers were lost with the same part, 64 to 99 \(no memory\)"):
        shift.requeue([1], "no memory")


def test_a_cluster_that_went_away_is_a_sentence(
    two_nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself ends the process a minute after its control store was killed, without a word of what to do."""
    for module in ("worker_pool", "engine"):
        monkeypatch.setattr(f"crfl_engines.ray.{module}.is_reachable", lambda _: False)
    for name in ("LOOK_SECONDS", "GONE_SECONDS"):
        monkeypatch.setattr(f"crfl_engines.ray.worker_pool.{name}", 0.0)
    said = "the control store of the Ray cluster at .* does not answer any more: start the cluster again"
    with pytest.warns(CrflWarning, match=said), pytest.raises(RunError, match=said) as caught:
        crfl_core.run(CONFIG | {"engine": two_nodes.engine()}, out=tmp_path / "run")
    assert any("resume with `crfl run" in note for note in caught.value.__notes__)


def test_a_cluster_is_reachable_while_it_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert is_reachable(address)
    assert not is_reachable(address)
    assert not is_reachable("")
