"""The explorer shows what `crfl certify` says, and why it says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from crfl_reports.pages.explorer import axes, explorer_data, round_axis

import crfl_core
from crfl_core import Curve, RunResult
from crfl_core.records.threat import Threat
from tests.reports.conftest import data_of


@pytest.fixture(scope="module")
def run(run_directory: Path) -> RunResult:
    return crfl_core.load(run_directory)


@pytest.fixture(scope="module")
def explorer(report: Path) -> dict[str, Any]:
    """What the page has, after its way through the file."""
    found: dict[str, Any] = data_of(report)["explorer"]
    return found


def answers_at(explorer: dict[str, Any], **chosen: int) -> dict[str, dict[str, Any]]:
    """The answers of all certificates where the sliders have these places, the others those of the run."""
    flat = 0
    for axis in explorer["axes"]:
        flat = flat * len(axis["values"]) + chosen.get(axis["key"], axis["own"])
    numbers = explorer["points"][flat]
    return dict(zip(explorer["certificates"], (explorer["answers"][number] for number in numbers), strict=True))


def check_same(explorer: dict[str, Any], answers: dict[str, dict[str, Any]], curves: tuple[Curve, ...]) -> None:
    for curve in curves:
        level = answers[curve.certificate]["levels"][curve.level]
        found = explorer["curves"][level["sets"][curve.test_set]]
        radii = [float(radius) for radius in found["radii"]]
        for at, accuracy, rate in zip(curve.radii, curve.certified_accuracy, curve.certified_rate, strict=True):
            place = radii.index(at)
            assert found["right"][place] / found["samples"] == accuracy
            assert found["certified"][place] / found["samples"] == rate
        assert (level["statement"], level["world"]) == (curve.statement, curve.clean_world)
        assert tuple(level["directions"]) == curve.directions
        assert tuple(level["conditional"]) == curve.conditional


def test_the_threat_of_the_run_gives_the_numbers_of_the_run(run: RunResult, explorer: dict[str, Any]) -> None:
    check_same(explorer, answers_at(explorer), run.metrics.curves)


@pytest.mark.parametrize(
    ("places", "overrides"),
    [
        ({"clients": 2}, ["threat.clients=3"]),
        ({"scale": 2}, ["threat.scale=100"]),
        ({"poison_ratio": 2, "clients": 1}, ["threat.poison_ratio=1.0", "threat.clients=2"]),
        ({"rounds": 0}, ["threat.rounds=[1]"]),
        ({"rounds": 3}, ["threat.rounds='any'"]),
        ({"rounds": 4, "clients": 4}, ["threat.rounds='every'", "threat.clients=10"]),
    ],
)
def test_every_answer_is_that_of_certify(
    run: RunResult, explorer: dict[str, Any], places: dict[str, int], overrides: list[str]
) -> None:
    expected, answers = crfl_core.certify(run, overrides), answers_at(explorer, **places)
    assert expected.needs == "formulas"
    check_same(explorer, answers, expected.curves)
    for name, reason in expected.refused.items():
        if name in answers:
            assert answers[name]["refused"] == reason
    answered = {name for name, answer in answers.items() if "refused" not in answer}
    assert answered == {curve.certificate for curve in expected.curves}


def test_assumptions_are_those_of_the_audit(run: RunResult, explorer: dict[str, Any]) -> None:
    answers = answers_at(explorer)
    for audit in run.audits:
        shown = [explorer["checks"][number] for number in answers[audit.certificate]["checks"]]
        assert [(name, status) for name, status, *_ in shown] == [(one.name, one.status) for one in audit.checks]


def test_without_time_only_the_nearest_points_are_answered(run: RunResult) -> None:
    explorer = explorer_data(run, seconds=0.0)
    assert sum(point is not None for point in explorer["points"]) <= 1


def test_votes_that_are_not_stored_are_named(own_run: Path) -> None:
    from crfl_reports.pages.explorer import missing_votes

    from crfl_core.records.votes import VoteRequest

    assert "continuations from round 7" in missing_votes(VoteRequest("continuations", 10, 0.1, 5, 7))
    assert "crfl certify" in missing_votes(VoteRequest("monte-carlo", 10, 0.1))


def test_sliders_hold_what_the_run_assumed() -> None:
    own = Threat(clients=(4, 7), rounds=(3,), scale=20.0, poison_ratio=0.3)
    for axis, value in zip(axes(own, 9, 8), (2, 20.0, 0.3, [3]), strict=True):
        assert axis.values[axis.own] == value
        assert len(set(map(str, axis.values))) == len(axis.values)
    assert max(axes(own, 9, 8)[0].values) <= 8


def test_unknown_rounds_of_the_run_are_a_place_of_their_own() -> None:
    own = Threat(clients=1, rounds=tuple(range(1, 6)), rounds_at_most=2)
    axis = round_axis(own, 5)
    assert axis.values[axis.own] == {"any": 2}
    assert axis.texts[axis.own] == "any 2 of rounds 1..5"
    every = Threat(clients=1, rounds=tuple(range(1, 6)))
    assert round_axis(every, 5).texts.count("every round") == 0
