"""What cannot be is refused at once; what takes long is asked for at a terminal, and told where there is none."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from crfl_core import resource_limits as room
from crfl_core.cli import BAD_INPUT, INTERRUPTED, consent
from tests.cli.terminals import Terminal
from tests.oracle import sealed

Crfl = Callable[..., CompletedProcess[str]]
Start = Callable[..., Terminal]

LONG = [
    *("--set", "rounds=2", "--set", "attack=none", "--set", "certificates=paper"),
    *("--set", "votes.models=1000000000", "--set", "engine.threads=1"),
]
"""A run whose votes take many hours."""


@pytest.fixture(autouse=True)
def eight_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine has that runs the tests."""
    monkeypatch.setattr(room, "memory", lambda: room.Room(8 * 10**9, "available memory"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rounds=1000000000", "ledger of 1,000,000,000 rounds of 50 clients, and 8.0 GB are left (available memory)"),
        ("partition.clients=1000000000", "lower partition.clients"),
        ("certificates=[{type='tail',continuations=1000000000}]", "lower certificates.0.continuations"),
    ],
)
@pytest.mark.parametrize("command", ["run", "explain"])
def test_what_memory_cannot_hold_is_refused(crfl: Crfl, command: str, override: str, message: str) -> None:
    started = time.process_time()
    result = crfl(command, "--set", override)
    assert result.returncode == BAD_INPUT
    assert result.stderr.startswith(f"error: --set {override}: ")
    assert "this needs about" in result.stderr
    assert message in result.stderr
    assert time.process_time() - started < 2


@pytest.mark.parametrize("options", [[], ["--yes"], ["--dry-run"]])
def test_what_takes_a_lifetime_is_refused_whatever_one_says(crfl: Crfl, tmp_path: Path, options: list[str]) -> None:
    result = crfl("run", "--set", "votes.models=1000000000000", *options)
    assert result.returncode == BAD_INPUT
    assert "votes.models: this would take at least" in result.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("votes.models=1000000000000", "this would take at least"),
        ("votes.models=1000000000000", "lower votes.models"),
        ("threat.rounds={first=1,last=1000000000000}", "but rounds are 1..3"),
    ],
)
def test_questions_to_a_finished_run_are_bounded_as_well(
    crfl: Crfl, finished_run: Path, override: str, message: str
) -> None:
    started = time.process_time()
    result = crfl("certify", finished_run, "--set", override)
    assert result.returncode == BAD_INPUT
    assert message in result.stderr
    assert time.process_time() - started < 2


@pytest.mark.parametrize("command", ["show", "certify"])
def test_a_ledger_that_claims_more_rounds_than_it_has_is_refused(
    crfl: Crfl, finished_run: Path, tmp_path: Path, command: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished_run, copy)
    facts = json.loads((copy / "ledger.json").read_text())
    (copy / "ledger.json").write_text(json.dumps(facts | {"rounds": 10**9}))
    started = time.process_time()
    result = crfl(command, sealed(copy))
    assert time.process_time() - started < 2
    if command == "certify":
        assert result.returncode == BAD_INPUT
        assert "the ledger must hold rounds 1 to 1000000000, found 3" in result.stderr


def test_a_run_that_is_resumed_is_bounded_as_well(crfl: Crfl, finished_run: Path, tmp_path: Path) -> None:
    """An unfinished one whose config was made larger by somebody who also wrote fitting digests."""
    copy = tmp_path / "copy"
    shutil.copytree(finished_run, copy)
    config = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(re.sub(r"^rounds = 3$", "rounds = 1000000000", config, flags=re.MULTILINE))
    for name in ("manifest.json", "status.json"):
        (copy / name).unlink()
    (copy / "status.json").write_text('{"format": 2, "state": "training", "files": {}}')
    started = time.process_time()
    result = crfl("resume", copy, "--trust")
    assert result.returncode == BAD_INPUT
    assert "lower rounds" in result.stderr
    assert time.process_time() - started < 2


def test_a_dry_run_has_its_numbers_as_json(crfl: Crfl, small: list[str], tmp_path: Path) -> None:
    told = json.loads(crfl("run", *small, "--dry-run", "--json").stdout)
    assert set(told) == {"seconds", "memory", "disk"}
    assert set(told["seconds"]) >= {"training", "votes", "continuations", "certificates"}
    assert all(value >= 0 for value in told["seconds"].values())
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_says_what_a_run_takes_and_writes_nothing(crfl: Crfl, small: list[str], tmp_path: Path) -> None:
    result = crfl("run", *small, "--dry-run")
    assert result.returncode == 0, result.stderr
    lines = dict(re.findall(r"^(\S.*?)  +(\S+ \S+)(?:  .*)?$", result.stdout, re.MULTILINE))
    assert {*lines} >= {"data and features", "training", "votes", "certificates", "in all", "peak memory", "disk"}
    assert "3 rounds of 50 clients, 650 parameters" in result.stdout
    assert not any(tmp_path.iterdir())


def test_without_a_terminal_a_long_run_is_told_and_started(
    crfl: Crfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended when it has been written: the votes would take days."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("crfl_core.runs.run.certify", stop)
    result = crfl("run", *LONG, "--out", "long", "--quiet")
    assert result.returncode == INTERRUPTED
    assert re.search(
        r"^warning: this run will take about \S+ (hours|days), .* of it for votes; `crfl run --dry-run`", result.stderr
    )
    assert (tmp_path / "long" / "model.safetensors").exists()
    told = crfl("run", *LONG, "--out", "agreed", "--quiet", "--yes")
    assert told.returncode == INTERRUPTED
    assert "warning" not in told.stderr


def test_short_runs_are_not_tried(crfl: Crfl, small: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("crfl_core.reporting.estimate.estimated", fail)
    assert crfl("run", *small, "--quiet").returncode == 0


def long_run(terminal: Start, folder: Path, *options: str) -> Terminal:
    """A run of hours, at a terminal."""
    return terminal("run", "--out", str(folder / "run"), "--quiet", *LONG, *options)


def until(happened: Callable[[], bool]) -> None:
    """Wait, but not for ever."""
    for _ in range(1200):
        if happened():
            return
        time.sleep(0.05)
    pytest.fail("it did not happen within a minute")


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["n", "", "what?"])
def test_whoever_does_not_say_yes_gets_no_run(terminal: Start, tmp_path: Path, answer: str) -> None:
    window = long_run(terminal, tmp_path)
    assert re.search(r"this run will take about .* Start it\? \[y/N\] ", window.shown("[y/N] "))
    window.type(f"{answer}\n")
    assert "not started: nothing was written" in window.shown("details")
    assert window.process.wait(timeout=30) == consent.DECLINED
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_ctrl_c_at_the_question_writes_nothing(terminal: Start, tmp_path: Path) -> None:
    window = long_run(terminal, tmp_path)
    assert "[y/N] " in window.shown("[y/N] ")
    window.process.send_signal(signal.SIGINT)
    assert "interrupted: nothing was written yet" in window.shown("written yet")
    assert window.process.wait(timeout=30) == INTERRUPTED
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("asked", [True, False])
def test_whoever_says_yes_gets_the_run(terminal: Start, tmp_path: Path, asked: bool) -> None:
    window = long_run(terminal, tmp_path, *([] if asked else ["--yes"]))
    if asked:
        assert "[y/N] " in window.shown("[y/N] ")
        window.type("y\n")
    until(lambda: (tmp_path / "run" / "model.safetensors").exists())
    window.process.send_signal(signal.SIGINT)
    shown = window.shown("resume with")
    assert ("Start it?" in shown) is False
    assert window.process.wait(timeout=30) == INTERRUPTED
