"""Going on after a stop, wherever it came: not one byte differs from a run that never stopped."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import crfl_core
from crfl_core import RunResult, dump_config, extend, load_config
from crfl_core.extend import CertificateResult, Plugin, RunContext, Tracker, hookimpl
from crfl_core.runs.checkpoints import CheckpointWriter, read_checkpoint
from crfl_core.runs.run_directory import RunDirectory
from tests.oracle import Momentum, contents, stopping, tiny

PLUGINS: dict[str, type[Plugin]] = {"momentum": Momentum}
CONFIG = tiny(
    rounds=5,
    model={"type": "mlp", "hidden": [6]},
    training={"learning_rate": 0.2, "steps": 4, "batch_size": 16, "participation": 0.5},
    attack=tiny()["attack"] | {"clients": [0, 1, 4, 5, 6], "rounds": {"first": 2}},
    aggregation=[{"type": "momentum"}],
    storage={"checkpoint_seconds": 0},
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """The run without an interrupt."""
    return crfl_core.run(CONFIG, out=tmp_path_factory.mktemp("whole") / "run", plugins=PLUGINS)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("broken")], ids=["interrupted", "broken"])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_a_run_that_stopped_in_any_round_ends_like_one_that_did_not(
    number: int, error: BaseException, whole: RunResult, tmp_path: Path
) -> None:
    """The rule has a state, a velocity and a counter, that the checkpoint must bring back."""
    with pytest.raises((KeyboardInterrupt, extend.PluginFailure)):
        crfl_core.run(CONFIG, out=tmp_path / "run", plugins={"momentum": stopping(number, error)})
    assert len(RunDirectory(tmp_path / "run").read_rounds()) == number - 1
    resumed = crfl_core.resume(tmp_path / "run", plugins=PLUGINS)
    assert contents(resumed.path) == contents(whole.path)


def test_a_run_may_stop_in_every_round(whole: RunResult, tmp_path: Path) -> None:
    for number in (1, 2, 3, 4, 5):
        with pytest.raises(KeyboardInterrupt):  # `run` resumes as `resume` would
            crfl_core.run(CONFIG, out=tmp_path / "run", plugins={"momentum": stopping(number, KeyboardInterrupt())})
    assert contents(crfl_core.run(CONFIG, out=tmp_path / "run", plugins=PLUGINS).path) == contents(whole.path)


def test_the_state_of_a_rule_matters(whole: RunResult, tmp_path: Path) -> None:
    """Otherwise the comparisons above would prove nothing: without its state the same run ends elsewhere."""
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(CONFIG, out=tmp_path / "run", plugins={"momentum": stopping(4, KeyboardInterrupt())})
    directory = RunDirectory(tmp_path / "run")
    tensors, notes = directory.read_tensors_and_notes("checkpoint/state.safetensors")
    assert int(tensors["aggregation.0/rounds"]) == 3
    kept = {name: array for name, array in tensors.items() if not name.startswith("aggregation.0/")}
    directory.write_tensors("checkpoint/state.safetensors", kept, notes)
    forgetful = crfl_core.resume(tmp_path / "run", plugins=PLUGINS)
    assert not torch.equal(forgetful.parameters, whole.parameters)


@pytest.mark.parametrize("moment", ["before the line", "after the line", "before it counts", "after it counts"])
@pytest.mark.parametrize("seconds", [0, 1000])
def test_an_interrupt_between_two_steps_of_the_bookkeeping_loses_nothing(
    moment: str, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: RunResult
) -> None:
    """Ctrl-C and SIGTERM come whenever they like; the checkpoint that is then written must fit the ledger."""
    name = "append_rounds" if "line" in moment else "note_round"
    real: Callable[..., None] = getattr(CheckpointWriter, name)
    calls = iter(range(1, 100))

    def interrupted(*arguments: Any) -> None:
        stops = next(calls) == 3
        if not (stops and moment.startswith("before")):
            real(*arguments)
        if stops:
            raise KeyboardInterrupt

    config = CONFIG | {"storage": {"checkpoint_seconds": seconds}}
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointWriter, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            crfl_core.run(config, out=tmp_path / "run", plugins=PLUGINS)
    saved = read_checkpoint(RunDirectory(tmp_path / "run"))
    assert saved is not None
    assert saved.round == (3 if moment == "after it counts" else 2)
    resumed = crfl_core.resume(tmp_path / "run", plugins=PLUGINS)
    for file in ("model.safetensors", "rounds.jsonl", "clients.npz"):
        assert (resumed.path / file).read_bytes() == (whole.path / file).read_bytes()


def test_without_a_checkpoint_a_run_starts_again(whole: RunResult, tmp_path: Path) -> None:
    """A power cut leaves no time to write one."""
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(CONFIG, out=tmp_path / "run", plugins={"momentum": stopping(4, KeyboardInterrupt())})
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    resumed = crfl_core.resume(tmp_path / "run", plugins=PLUGINS)
    assert (resumed.path / "rounds.jsonl").read_bytes() == (whole.path / "rounds.jsonl").read_bytes()
    assert torch.equal(resumed.parameters, whole.parameters)


def cut_line(path: Path) -> None:
    """A kill in the middle of a line."""
    with (path / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round":4,"clip_')


def later_rounds(path: Path) -> None:
    """Rounds that were played after the last checkpoint."""
    last = (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)[-1]
    with (path / "rounds.jsonl").open("ab") as file:
        file.write(last.replace(b'"round":3', b'"round":4'))


def later_rows(path: Path) -> None:
    """A kill between the two files of a checkpoint."""
    folder = path / "checkpoint"
    (folder / "clients-00000004.npz").write_bytes((folder / "clients-00000003.npz").read_bytes())


def temporary_files(path: Path) -> None:
    """A kill in the middle of a write."""
    for name in (".status.json", "checkpoint/.state.safetensors", ".clients.npz", ".rounds.jsonl"):
        (path / f"{name}.0123456789abcdef.tmp").write_bytes(b"half")


@pytest.mark.parametrize("trace", [cut_line, later_rounds, later_rows, temporary_files])
def test_what_a_kill_leaves_behind_is_cleaned_up(
    trace: Callable[[Path], None], whole: RunResult, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(CONFIG, out=tmp_path / "run", plugins={"momentum": stopping(4, KeyboardInterrupt())})
    trace(tmp_path / "run")
    assert contents(crfl_core.resume(tmp_path / "run", plugins=PLUGINS).path) == contents(whole.path)


class Diary(Tracker):
    """Writes down where runs begin."""

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        starts.append(run.resumed_from)


starts: list[int] = []


class Unlucky(Tracker):
    """Is interrupted when the first guarantee is ready: votes are stored, certificates are not."""

    @hookimpl
    def crfl_certified(self, certified: CertificateResult) -> None:
        raise KeyboardInterrupt


def test_a_trained_run_goes_on_with_its_votes(tmp_path: Path) -> None:
    config = tiny(storage={"checkpoint_seconds": 0})
    whole = crfl_core.run(config, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(config, out=tmp_path / "run", trackers=[Unlucky()])
    assert RunDirectory(tmp_path / "run").state == "trained"
    assert not (tmp_path / "run" / "certificates").exists()
    (votes,) = (tmp_path / "run" / "votes").iterdir()
    written = votes.stat().st_mtime_ns
    starts.clear()
    resumed = crfl_core.resume(tmp_path / "run", trackers=[Diary()])
    assert starts == [4]
    assert votes.stat().st_mtime_ns == written  # no model voted twice
    assert contents(resumed.path) == contents(whole.path)


def test_a_checkpoint_that_outlived_training_is_removed(tmp_path: Path) -> None:
    """A kill between the word that training is over and the removal."""
    config = tiny(storage={"checkpoint_seconds": 0})
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(config, out=tmp_path / "run", trackers=[Unlucky()])
    (tmp_path / "run" / "checkpoint").mkdir()
    (tmp_path / "run" / "checkpoint" / "state.safetensors").write_bytes(b"old")
    assert not (crfl_core.resume(tmp_path / "run").path / "checkpoint").exists()


def start(config: Path, out: Path) -> subprocess.Popen[bytes]:
    """`crfl run` in a process of its own."""
    command = [sys.executable, "-m", "crfl_core", "run", str(config), "--out", str(out), "--quiet"]
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> bool:
    """Whether a condition came true before the process ended."""
    while process.poll() is None:
        if condition():
            return True
        time.sleep(0.005)
    return False


def lines_beyond(ledger: Path, more: int) -> Callable[[], bool]:
    """Whether the ledger has this many lines more than now. Lines, so that fast machines are not killed too late."""

    def lines() -> int:
        return ledger.read_bytes().count(b"\n") if ledger.exists() else 0

    wanted = lines() + more
    return lambda: lines() >= wanted


def kill(process: subprocess.Popen[bytes]) -> None:
    """No chance to clean up."""
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def write_config(path: Path, **changes: Any) -> Path:
    """A config file for the command line."""
    file = path / "config.toml"
    file.write_text(dump_config(load_config(tiny(storage={"checkpoint_seconds": 0}) | changes).config))
    return file


def finish(config: Path, out: Path) -> None:
    """Let a run come to its end."""
    assert start(config, out).wait() == 0


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """SIGKILL at random moments of training: some rounds after a process has begun, and some part of a round."""
    config = write_config(tmp_path, rounds=200, attack=tiny()["attack"] | {"rounds": [70]}, evaluation={"every": 10})
    finish(config, tmp_path / "whole")
    killed, moments = tmp_path / "killed", random.Random(7)
    for _ in range(3):
        process = start(config, killed)
        assert wait_for(lines_beyond(killed / "rounds.jsonl", moments.randint(1, 50)), process)
        time.sleep(moments.uniform(0.0, 0.02))
        kill(process)
    command = [sys.executable, "-m", "crfl_core", "run", str(killed), "--quiet"]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    whole, resumed = contents(tmp_path / "whole"), contents(killed)
    assert whole.keys() == resumed.keys()
    assert [name for name in whole if whole[name] != resumed[name]] == []
    assert {path.name for path in tmp_path.iterdir()} == {"config.toml", "whole", "killed"}


@pytest.mark.slow
def test_a_run_that_is_killed_while_it_votes_ends_with_the_same_bytes(tmp_path: Path) -> None:
    config = write_config(tmp_path, votes={"models": 30_000})
    killed = tmp_path / "killed"
    process = start(config, killed)
    status = killed / "status.json"
    voting = wait_for(lambda: status.exists() and json.loads(status.read_text())["state"] == "trained", process)
    assert voting, "the run ended before it could be killed: give it more votes"
    kill(process)
    assert json.loads(status.read_text())["state"] == "trained"
    resumed = crfl_core.resume(killed)
    whole = crfl_core.run(config, out=tmp_path / "whole")
    assert contents(resumed.path) == contents(whole.path)
