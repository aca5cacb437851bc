"""A run that fits neither into memory nor on the disk is refused at once; a dry run prints what it needs."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from crfl_core import resource_limits
from crfl_core.cli import EXIT_BAD_INPUT
from tests.oracle import sealed, write_status

Crfl = Callable[..., CompletedProcess[str]]


@pytest.fixture(autouse=True)
def eight_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine has that runs the tests."""
    monkeypatch.setattr(resource_limits, "free_memory", lambda: resource_limits.Headroom(8 * 10**9, "available memory"))


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
    assert result.returncode == EXIT_BAD_INPUT
    assert result.stderr.startswith(f"error: --set {override}: ")
    assert "this needs about" in result.stderr
    assert message in result.stderr
    assert time.process_time() - started < 2


def test_questions_to_a_finished_run_are_bounded_as_well(crfl: Crfl, finished_run: Path) -> None:
    started = time.process_time()
    result = crfl("certify", finished_run, "--set", "threat.rounds={first=1,last=1000000000000}")
    assert result.returncode == EXIT_BAD_INPUT
    assert "but rounds are 1..3" in result.stderr
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
        assert result.returncode == EXIT_BAD_INPUT
        assert "the ledger must hold rounds 1 to 1000000000, found 3" in result.stderr


def test_a_run_that_is_resumed_is_bounded_as_well(crfl: Crfl, finished_run: Path, tmp_path: Path) -> None:
    """An unfinished run whose config was made larger, with fitting digests."""
    copy = tmp_path / "copy"
    shutil.copytree(finished_run, copy)
    config = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(re.sub(r"^rounds = 3$", "rounds = 1000000000", config, flags=re.MULTILINE))
    (copy / "manifest.json").unlink()
    write_status(copy, {"format": 1, "state": "training", "files": {}})
    started = time.process_time()
    result = crfl("run", copy, "--trust")
    assert result.returncode == EXIT_BAD_INPUT
    assert "lower rounds" in result.stderr
    assert time.process_time() - started < 2


def test_a_dry_run_prints_its_numbers_as_json(crfl: Crfl, small: list[str], tmp_path: Path) -> None:
    numbers = json.loads(crfl("run", *small, "--dry-run", "--json").stdout)
    assert (numbers["rounds"], numbers["clients"], numbers["parameters"]) == (3, 50, 650)
    assert numbers["memory"] > 50e6
    assert 10e3 < numbers["disk"] < 10e6
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_prints_what_would_run_and_writes_nothing(crfl: Crfl, small: list[str], tmp_path: Path) -> None:
    result = crfl("run", *small, "--dry-run")
    assert result.returncode == 0, result.stderr
    assert "3 rounds of 50 participants, 650 parameters" in result.stdout
    assert [line.split()[0] for line in result.stdout.splitlines()][:2] == ["data", "training"]
    assert re.search(r"^memory +about .* at the peak; 8\.0 GB are left \(available memory\)$", result.stdout, re.M)
    assert re.search(r"^disk +about .* are left \(free disk at ", result.stdout, re.M)
    assert not any(tmp_path.iterdir())


def test_a_dry_run_refuses_what_a_run_would_refuse(crfl: Crfl) -> None:
    result = crfl("run", "--set", "rounds=1000000000", "--dry-run")
    assert result.returncode == EXIT_BAD_INPUT
    assert "lower rounds" in result.stderr
