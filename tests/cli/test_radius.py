"""`crfl paper radius`: the calculator shows every term, and its numbers are those of the formulas."""

from __future__ import annotations

import json
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
from crfl_experiments.commands.radius_calculator import Point, radius
from pydantic import ValidationError

from crfl_core import formulas

Crfl = Callable[..., CompletedProcess[str]]

PAPER: dict[str, Any] = {
    "p_a": 0.7,
    "p_b": 0.1,
    "noise_std": 0.01,
    "clip_norm": 3.0,
    "weight": 0.05,
    "learning_rate": 0.001,
    "steps": 30,
    "poison_ratio": 0.05,
    "scale": 10.0,
    "rounds_after": 90,
    "input_norm": 28.0,
}
"""The paper's MNIST defaults on pixels, of norm at most 28."""


def arguments(values: dict[str, Any]) -> list[str]:
    """The values as options of the command."""
    return [text for name, value in values.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def shown(outcome: CompletedProcess[str]) -> dict[str, float]:
    """The numbers on the terminal, by symbol or rule."""
    found = {}
    for line in filter(None, outcome.stdout.splitlines()):
        if line.startswith("radius"):
            _, value, rule = line.split(maxsplit=2)
            found[f"radius {rule}"] = float(value)
        else:
            symbol, rest = line[:12].strip(), line[12:]
            found[symbol] = float(rest.split()[0])
    return found


def test_every_term_is_shown_and_is_what_its_formula_says(crfl: Crfl) -> None:
    outcome = crfl("paper", "radius", *arguments(PAPER))
    assert outcome.returncode == 0
    found = shown(outcome)
    threshold = float(formulas.gaussian_threshold(0.7, 0.1))
    expected = {
        "S": 7.5e-4,
        "eps": 0.31587545,
        "L_Z": np.sqrt(17.0),
        "log prod": 0.0,
        "mu*": threshold,
        "D pathwise": 0.01 * threshold,
        "D tail": 0.01 * np.sqrt(91) * threshold,
        "G max": 2 * np.sqrt(2) * 28.0,
        "F": 84.0 / 2 + 1 / np.sqrt(2) + 1 / (4 * 84.0),
        "radius paper (reproduction, not a proof)": 1.285,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-3, abs=1e-300)
    assert set(found) == set(expected) | {"radius pathwise", "radius tail"}


@pytest.mark.parametrize("changes", [{}, {"attackers": 3}, {"rounds_after": 0}, {"start_norm": 0.5}, {"scale": 1.0}])
def test_a_radius_is_the_largest_change_whose_drift_is_tolerated(changes: dict[str, Any]) -> None:
    point = Point(**(PAPER | changes))
    result = radius(point)
    terms = {term.symbol: term.value for term in result.terms}
    start = point.clip_norm if point.start_norm is None else point.start_norm
    for rule in ("pathwise", "tail"):
        found = result.radii[rule]

        def drift(delta: float) -> float:
            shift = formulas.feature_shift(delta, input_bound=28.0, start_norm=start, path=0.03, domain_bound=28.0)
            return float(point.attackers * terms["S"] * shift)

        tolerated = terms[f"D {rule}"]
        if np.isinf(found):
            assert point.attackers * terms["S"] * terms["G max"] <= tolerated
        else:
            assert drift(found) <= tolerated
            assert drift(found * (1 + 1e-6)) > tolerated * (1 - 1e-6)


def test_pathwise_and_tail_are_the_same_in_the_final_round() -> None:
    radii = radius(Point(**(PAPER | {"rounds_after": 0}))).radii
    assert radii["pathwise"] == radii["tail"]


def test_an_undecided_vote_has_no_radius() -> None:
    radii = radius(Point(**(PAPER | {"p_b": 0.7}))).radii
    assert np.isnan([radii["pathwise"], radii["tail"]]).all()
    assert radii["paper (reproduction, not a proof)"] == 0.0


def test_a_certain_vote_has_every_radius() -> None:
    radii = radius(Point(**(PAPER | {"p_a": 1.0, "p_b": 0.0}))).radii
    assert list(radii.values()) == [np.inf] * 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("p_a", 0.0),
        ("p_a", 1.1),
        ("p_a", "nan"),
        ("p_b", 1.0),
        ("p_b", -0.1),
        ("noise_std", 0.0),
        ("noise_std", "inf"),
        ("clip_norm", -1.0),
        ("weight", 0.0),
        ("weight", 1.5),
        ("learning_rate", 0.0),
        ("steps", 0),
        ("poison_ratio", 0.0),
        ("poison_ratio", 1.5),
        ("scale", 0.5),
        ("attackers", 0),
        ("rounds_after", -1),
        ("input_norm", 0.0),
        ("start_norm", -1.0),
    ],
)
def test_values_that_make_no_sense_are_refused_in_a_sentence(crfl: Crfl, name: str, value: Any) -> None:
    outcome = crfl("paper", "radius", *arguments(PAPER | {name: value}))
    assert outcome.returncode == 2
    assert name in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert outcome.stdout == ""
    with pytest.raises(ValidationError):
        Point.model_validate(PAPER | {name: float(value)})


@pytest.mark.parametrize("text", ["a lot", ""])
def test_words_in_place_of_numbers_are_refused(crfl: Crfl, text: str) -> None:
    outcome = crfl("paper", "radius", *arguments(PAPER | {"p_a": text}))
    assert outcome.returncode == 2
    assert "--p-a" in outcome.stderr


def test_what_is_missing_is_named(crfl: Crfl) -> None:
    values = {name: value for name, value in PAPER.items() if name != "weight"}
    outcome = crfl("paper", "radius", *arguments(values))
    assert outcome.returncode == 2
    assert "--weight" in outcome.stderr


def test_a_delta_for_every_attacker_is_put_into_the_theorems(crfl: Crfl) -> None:
    values = PAPER | {"attackers": 2, "clip_norm": 0.01, "rounds_after": 3}
    outcome = crfl("paper", "radius", *arguments(values), "--delta", "0.1", "--delta", "0.5", "--json")
    assert outcome.returncode == 0
    found = json.loads(outcome.stdout)
    added = 2 * 2 * (7.5e-4**2) * (2 + 0.02 + 0.01**2) * (0.1**2 + 0.5**2) / 0.01**2
    kept = float(np.exp(formulas.log_contraction([0.01], [0.01])))
    assert found["divergence"] == pytest.approx([added * kept**later for later in range(4)], rel=1e-9)
    assert found["covered"] is True
    shown = crfl("paper", "radius", *arguments(values), "--delta", "0.1", "--delta", "0.5").stdout
    assert "covered by Theorem 1 (reproduction, not a proof)" in shown


def test_a_common_delta_is_covered_up_to_the_papers_radius() -> None:
    point = Point(**(PAPER | {"attackers": 3}))
    limit = radius(point).radii["paper (reproduction, not a proof)"]
    for factor, covered in ((1 - 1e-9, True), (1 + 1e-9, False)):
        assert radius(point.model_copy(update={"deltas": (factor * limit,)})).covered is covered
    undecided = radius(Point(**(PAPER | {"p_b": 0.7, "deltas": (0.1,)})))
    assert undecided.covered is None
    assert radius(point).divergence == ()


def test_deltas_must_be_one_or_as_many_as_attackers(crfl: Crfl) -> None:
    outcome = crfl("paper", "radius", *arguments(PAPER | {"attackers": 3}), "--delta", "0.1", "--delta", "0.2")
    assert outcome.returncode == 2
    assert "must be one number, or one for each of the 3 attackers" in outcome.stderr
    negative = crfl("paper", "radius", *arguments(PAPER), "--delta", "-0.1")
    assert negative.returncode == 2
    assert "deltas" in negative.stderr
