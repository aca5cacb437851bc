"""Pieces of a run are tried to say how long it will take, and the run itself does not notice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import crfl_core
from crfl_core import load_config
from crfl_core.extend import Registry
from crfl_core.reporting.estimate import Estimate, estimated
from crfl_core.reporting.trial import Played, Trial, extrapolated
from crfl_core.runs import run as execution
from crfl_core.training import rounds
from crfl_core.training.ledger_rows import record
from tests.oracle import contents, tiny

TAIL = {"type": "tail", "continuations": 12, "selection": 4}
CASES: dict[str, dict[str, Any]] = {
    "votes and continuations": {
        "certificates": [{"type": "paper"}, TAIL],
        "model": {"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
    },
    "continuations that are refused": {"certificates": [TAIL]},
    "groups": {"groups": {"count": 2}, "certificates": [{"type": "group-vote"}]},
    "a rule that remembers": {"aggregation": "foolsgold"},
    "attacked in every round": {
        "attack": {"type": "sign-flip", "clients": [0], "rounds": {"first": 1}},
        "training": {"learning_rate": 0.2, "steps": {"start": 2, "slope": 1}},
    },
    "some take part, seldom measured": {
        "training": {"learning_rate": 0.2, "participation": 0.5},
        "evaluation": {"every": 0},
        "attack": "none",
    },
    "a module": {"model": "mlp", "dtype": "float64"},
    "secret votes": {"seeds": {"votes": "secret"}},
    "a twin alongside": {"storage": {"figures": [], "keep": "distances"}},
}


def estimate(config: dict[str, Any]) -> Estimate:
    return estimated(execution.prepare(load_config(config).config, Path("runs/none"), []), 0.5)


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_run_can_be_estimated(case: str) -> None:
    config = tiny(**CASES[case])
    found = estimate(config)
    assert found.seconds.data == 0.5
    assert 0 < found.seconds.training < 60
    refused = case == "continuations that are refused"
    assert (found.seconds.votes == 0) == refused
    assert (found.seconds.continuations > 0) == (TAIL in config.get("certificates", ()) and not refused)
    assert found.memory > 50e6
    assert 10e3 < found.disk < 10e6


def test_a_twin_plays_the_rounds_from_the_first_attack_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def played(trial: Trial, *_: object) -> Played:
        (start,) = rounds.initial(trial.federation)
        outcomes = rounds.play(trial.session, (start,))
        lines, rows = zip(*(record(trial.federation, outcome) for outcome in outcomes), strict=True)
        return Played(1000.0, 0.0, list(lines), list(rows), (start,))

    monkeypatch.setattr(Trial, "_played", played)
    alone, both = (estimate(tiny(storage={"keep": keep})).seconds.training for keep in ("needed", "distances"))
    assert both - alone == pytest.approx(3 * 1000, abs=100)  # rounds 2 to 4


def test_an_estimate_is_told_in_lines() -> None:
    lines = [*estimate(tiny(**CASES["votes and continuations"])).lines()]
    assert [what for what, _, _ in lines] == [
        "data and features",
        "training",
        "votes",
        "continuations",
        "certificates",
        "in all",
        "peak memory",
        "disk",
    ]
    assert lines[1][2] == "4 rounds of 8 clients, 650 parameters"
    assert lines[3][2] == "16 x 2 rounds"


@pytest.mark.parametrize("case", ["votes and continuations", "a rule that remembers"])
def test_a_run_that_was_tried_first_is_the_same_bit_for_bit(case: str, tmp_path: Path) -> None:
    config, origins = load_config(tiny(**CASES[case]))
    session = execution.prepare(config, tmp_path / "tried", [])
    estimated(session, 0.0)
    tried = execution.execute(session, Registry(), origins)
    assert contents(tried.path) == contents(crfl_core.run(config, out=tmp_path / "plain").path)


def test_what_takes_long_is_read_off_a_line() -> None:
    """A constant part and one that grows: 1,000 would take 4 s."""
    tries: list[int] = []

    def work(size: int) -> None:
        tries.append(size)
        time.sleep(0.02 + 0.004 * size)

    assert extrapolated(work, 1000) == pytest.approx(4.02, rel=0.3)
    assert max(tries) < 1000


def test_what_does_not_depend_on_the_size_is_not_multiplied() -> None:
    assert extrapolated(lambda _: time.sleep(0.6), 10_000) < 5
