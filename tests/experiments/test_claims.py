"""What a claim comes to, and what margins say of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from crfl_experiments.paper.claims import Exceeds, Ordered, SimilarSets, Steady, Within, judge_claim
from crfl_experiments.paper.phi import Study
from crfl_experiments.paper.readings import AREA, BACKDOORED, CLEAN, RATES, REACH, Point, Reading, Samples, samples_of


def samples(radii: list[float], wrong: tuple[int, ...] = ()) -> Samples:
    right = np.array([number not in wrong for number in range(len(radii))])
    return Samples(np.arange(len(radii)), right, np.array(radii))


def point(value: float, *radii: list[float], series: str = "", backdoored: list[float] | None = None) -> Point:
    """A point with one reading for each list of radii; seeds are counted from 0."""
    readings: dict[int, Any] = {}
    for seed, each in enumerate(radii):
        sets = {CLEAN: samples(each), BACKDOORED: samples(backdoored or each)}
        readings[seed] = SimpleNamespace(samples=lambda name=CLEAN, sets=sets: sets[name], target=None)
    return Point("made-up", value, series, cast(dict[int, Reading], readings))


@pytest.mark.parametrize(
    ("margins", "expected"),
    [
        ([0.1], "holds"),
        ([0.0], "does not hold"),
        ([-0.1], "does not hold"),
        ([1.0, 1.1, 0.9, 1.0, 1.0], "holds"),
        ([1.0, -0.8, 0.9, -0.7, 0.1], "undecided"),
        ([0.5, 0.5], "holds"),
        ([float("nan")], "does not hold"),
    ],
)
def test_a_step_is_judged_over_seeds(margins: list[float], expected: str) -> None:
    assert judge_claim({"step": margins}) == expected


def test_the_worst_step_decides() -> None:
    assert judge_claim({"one": [1.0], "two": [-1.0]}) == "does not hold"
    assert judge_claim({"one": [1.0, 1.0], "two": [2.0, -1.0]}) == "undecided"


def test_an_order_is_one_from_each_point_to_the_next() -> None:
    rising = [point(1, [1.0, 2.0]), point(2, [1.0, 3.0]), point(4, [1.0, 4.0])]
    assert judge_claim(Ordered(REACH).margins(rising)) == "holds"
    assert judge_claim(Ordered(REACH, rises=False).margins(rising)) == "does not hold"
    assert judge_claim(Ordered(REACH).margins([rising[0], rising[2], rising[1]])) == "does not hold"
    assert "2 at 1, 3 at 2, 4 at 4" in Ordered(REACH).measured_text(rising)


def test_series_are_not_compared_with_each_other_by_an_order() -> None:
    points = [point(1, [5.0], series="a"), point(2, [6.0], series="a"), point(1, [1.0], series="b")]
    assert list(Ordered(REACH).margins(points)) == ["a 1 to 2"]


def test_curves_are_compared_where_one_of_both_reaches() -> None:
    low, high = point(1, [1.0, 1.0]), point(2, [2.0, 2.0])
    far = point(3, [10.0, 10.0])
    margins = Ordered(RATES).margins([low, high, far])
    assert judge_claim(margins) == "does not hold"  # all are certified at small radii: the rate cannot rise there
    abstaining = [point(1, [-np.inf, -np.inf, 1.0]), point(2, [-np.inf, 2.0, 2.0]), point(3, [9.0, 9.0, 9.0])]
    assert judge_claim(Ordered(RATES).margins(abstaining)) == "holds"


def test_what_stays_is_compared_with_the_first_point() -> None:
    points = [point(1, [1.0]), point(2, [1.04]), point(3, [0.97])]
    assert judge_claim(Steady(REACH, 0.05).margins(points)) == "holds"
    assert judge_claim(Steady(REACH, 0.03).margins(points)) == "does not hold"
    assert judge_claim(Within(AREA, 1.04).margins(points)) == "holds"
    assert judge_claim(Within(AREA, 1.0).margins(points)) == "does not hold"


def test_series_are_compared_at_the_same_value_and_seed() -> None:
    points = [point(value, [value], [2 * value], series="fedavg") for value in (1.0, 2.0)]
    points += [point(value, [20 * value], [40 * value], series="rfa") for value in (1.0, 2.0)]
    assert judge_claim(Exceeds(REACH, "rfa", "fedavg", 10).margins(points)) == "holds"
    assert judge_claim(Exceeds(REACH, "rfa", "fedavg", 21).margins(points)) == "does not hold"
    assert Exceeds(REACH, "krum", "fedavg", 1).margins(points) == {}


def test_backdoored_samples_are_set_beside_clean_ones() -> None:
    assert judge_claim(SimilarSets().margins([point(1, [1.0, 2.0], backdoored=[1.0, 1.9])])) == "holds"
    assert judge_claim(SimilarSets().margins([point(1, [1.0, 2.0], backdoored=[0.5, 1.0])])) == "does not hold"


def test_several_seeds_are_told_with_their_deviation() -> None:
    points = [point(1, [1.0], [3.0]), point(2, [4.0], [4.0])]
    assert Ordered(REACH).measured_text(points) == "largest radius: 2 ± 1.4 at 1, 4 at 2"


def test_rows_of_a_certificate_become_samples() -> None:
    row = {"label": "3", "prediction": "3", "abstained": "False", "radius": "2.0"}
    rows = [row, {**row, "prediction": "4"}, {**row, "prediction": "-1", "abstained": "True", "radius": ""}]
    found = samples_of(rows, 0.5)
    assert found.rate([0.0, 1.0, 1.1]) == pytest.approx([2 / 3, 2 / 3, 0])
    assert found.accuracy([0.0, 1.1]) == pytest.approx([1 / 3, 0])
    assert found.reach == 1.0
    assert found.area == pytest.approx(1 / 3)
    assert found.without(3).reach == 0


def test_the_radius_of_the_papers_example_grows_with_rounds_only_where_noise_is_large() -> None:
    study = Study()
    at_ten = np.exp(study.log_radii[-1, 0])
    assert at_ten == pytest.approx(1.285, abs=5e-4)  # p_A = .7, p_B = .1 with the settings of Table 1
    assert study.growth == sorted(study.growth, reverse=True)
    assert judge_claim(study.margins()) == "holds"
