"""Rates of equal influence and unknown rounds: reference values, and exhaustive search."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crfl_core.certification.formulas import (
    Array,
    equal_influence_drift,
    equal_influence_rates,
    equal_influence_start,
    fixed_attackers_drift,
    largest_rate,
    later_products,
    residual_bound,
    retention,
    spectrum_gradient_bound,
    unknown_rounds_drift,
    variable_attackers_drift,
    worst_rounds,
)
from tests.certification.federation import Federation
from tests.certification.reference import every_round


def influences(rates: Array, steps: int, decay: float) -> Array:
    """`a_t` of every round."""
    kept = retention(rates, steps, decay)
    found: Array = (1.0 - kept) / decay * later_products(kept)
    return found


@pytest.mark.parametrize("case", every_round("equal_influence"))
def test_schedules_have_their_reference_values(case: dict[str, Any]) -> None:
    limit, decay, steps, rounds = float(case["L"]), float(case["lambda"]), case["steps"], case["rounds"]
    start = equal_influence_start(limit / 2.0, decay, steps)
    rates = equal_influence_rates(rounds, steps, decay, start, largest_rate(limit / 2.0, decay))
    assert start == pytest.approx(float(case["t0"]), rel=1e-12)
    assert rates[[0, -1]] == pytest.approx([float(case["eta_1"]), float(case["eta_T"])], rel=1e-12)
    drift = equal_influence_drift(1.0, spectrum_gradient_bound(limit), decay, rounds, start)
    assert drift == pytest.approx(float(case["influence_per_unit_weight"]), rel=1e-12)
    each = 2.0 * spectrum_gradient_bound(limit) * influences(rates, steps, decay)
    assert each == pytest.approx(np.full(rounds, drift), rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(
    beta=st.floats(1e-3, 10.0),
    decay=st.floats(1e-4, 10.0),
    steps=st.integers(1, 40),
    rounds=st.integers(1, 200),
)
def test_every_rate_keeps_the_step_rule_and_the_first_one_reaches_it(
    beta: float, decay: float, steps: int, rounds: int
) -> None:
    start, largest = equal_influence_start(beta, decay, steps), largest_rate(beta, decay)
    rates = equal_influence_rates(rounds, steps, decay, start, largest)
    assert (rates <= largest).all()
    assert rates[0] == pytest.approx(largest, rel=1e-9)
    assert (np.diff(rates) <= 0).all()
    assert np.prod(retention(rates, steps, decay)) == pytest.approx(start / (rounds + start), rel=1e-6, abs=1e-12)


def test_no_other_schedule_that_forgets_as_much_has_a_smaller_largest_influence() -> None:
    generator, decay, rounds = np.random.default_rng(0), 0.1, 6
    start = 3.0
    equal = influences(equal_influence_rates(rounds, 1, decay, start), 1, decay)
    assert equal == pytest.approx(np.full(rounds, 1.0 / (decay * (rounds + start))))
    forgotten, closest = np.log(start / (rounds + start)), np.inf
    steady = np.log((np.arange(rounds) + start) / (np.arange(rounds) + start + 1.0))
    for _ in range(3000):
        shares = generator.dirichlet(np.ones(rounds)) * forgotten
        shares = steady + 10.0 ** generator.uniform(-4.0, 0.0) * (shares - steady)
        largest = influences(-np.expm1(shares) / decay, 1, decay).max()
        assert largest >= equal.max() * (1.0 - 1e-12)
        closest = min(closest, largest)
    assert closest < 1.001 * equal.max()


def test_clients_with_more_steps_take_smaller_ones_and_all_keep_the_same() -> None:
    steps = np.array([1, 4, 10])
    start = equal_influence_start(0.5, 0.02, steps)
    assert start == max(equal_influence_start(0.5, 0.02, count) for count in steps)
    rates = equal_influence_rates(20, steps, 0.02, start, largest_rate(0.5, 0.02))
    assert rates.shape == (20, 3)
    kept = retention(rates, steps, 0.02)
    assert kept == pytest.approx(np.repeat(kept[:, :1], 3, axis=1), rel=1e-12)
    assert (np.diff(rates, axis=1) < 0).all()


def test_a_start_that_breaks_the_step_rule_is_named_and_a_later_one_is_slower() -> None:
    start = equal_influence_start(0.5, 0.02, 2)
    with pytest.raises(ValueError, match="too small for the step rule"):
        equal_influence_rates(10, 2, 0.02, 0.9 * start, largest_rate(0.5, 0.02))
    slower = equal_influence_rates(10, 2, 0.02, 2.0 * start, largest_rate(0.5, 0.02))
    assert (slower < equal_influence_rates(10, 2, 0.02, start)).all()


@pytest.mark.parametrize("arguments", [(10, 1, 0.0, 4.0), (10, 1, 0.1, -1.0), (10, 1, 0.1, np.nan), (0, 1, 0.1, 4.0)])
def test_what_a_schedule_needs_is_named(arguments: tuple[int, int, float, float]) -> None:
    with pytest.raises(ValueError, match="needs weight decay, a round and t0 >= 0"):
        equal_influence_rates(*arguments)
    with pytest.raises(ValueError, match="needs weight decay"):
        equal_influence_start(0.5, 0.0, 1)


def attacked_gap(federation: Federation, rates: Array, attacked: tuple[int, ...], direction: Array) -> float:
    """How far two worlds end apart that are attacked in some rounds, in opposite directions with the whole cap."""
    models = np.zeros((2, *federation.shape))
    for number, rate in enumerate(rates):
        federation.rate = float(rate)
        federation.kept = float(retention(rate, federation.steps, federation.decay))
        federation.cap = float(residual_bound(federation.bound or 0.0, rate, federation.steps, federation.decay))
        for world, sign in enumerate((1.0, -1.0)):
            residuals = federation.honest(models[world])
            if number in attacked:
                residuals[: federation.attackers] = sign * federation.cap * direction
            models[world] = federation.kept * models[world] + np.tensordot(federation.weights, residuals, axes=1)
    return float(np.linalg.norm(models[0] - models[1]))


def test_an_attack_in_any_round_or_several_stays_within_the_drift_and_reaches_it_where_honest_data_say_nothing() -> (
    None
):
    """Exhaustive over the rounds, and over all pairs of rounds."""
    rounds, ratios = 8, []
    for seed in range(12):
        federation = Federation(np.random.default_rng(seed), 0.05, limit=0.25)
        direction = np.zeros(federation.shape)
        direction[-1, 0] = 1.0
        if seed % 2:
            federation.x[..., -1] = 0.0
        start = equal_influence_start(0.125, federation.decay, federation.steps)
        rates = equal_influence_rates(rounds, federation.steps, federation.decay, start, largest_rate(0.125, 0.05))
        weight = float(federation.weights[: federation.attackers].sum())
        for number in (1, 2):
            drift = equal_influence_drift(number * weight, federation.bound or 0.0, federation.decay, rounds, start)
            gaps = [attacked_gap(federation, rates, one, direction) for one in combinations(range(rounds), number)]
            assert max(gaps) <= drift * (1.0 + 1e-9)
            if seed % 2:
                ratios += [gap / drift for gap in gaps]
    assert ratios == pytest.approx(np.ones(len(ratios)), rel=1e-9)  # in all rounds alike


@settings(max_examples=80, deadline=None)
@given(
    terms=st.lists(st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4), min_size=1, max_size=4),
    fades=st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4),
    count=st.integers(1, 4),
)
def test_unknown_rounds_cost_at_least_what_any_clients_in_any_rounds_do(
    terms: list[list[float]], fades: list[float], count: int
) -> None:
    each, fade = np.array(terms), np.array(fades[: len(terms)])
    lasting = unknown_rounds_drift(each, fade, count)
    changing = unknown_rounds_drift(each, fade, count, lasting=False)
    windows = [list(chosen) for chosen in combinations(range(len(each)), min(count, len(each)))]
    for number in range(5):
        sets = [list(chosen) for chosen in combinations(range(4), number)]
        same = max(float((fade[rows] @ each[rows][:, chosen]).sum()) for rows in windows for chosen in sets)
        other = max(
            sum(fade[row] * max(each[row, chosen].sum() for chosen in sets) for row in rows) for rows in windows
        )
        assert changing[number] == pytest.approx(other)
        assert same * (1.0 - 1e-12) <= lasting[number] <= changing[number]
        if count in (1, len(each)):
            assert lasting[number] == pytest.approx(same)


def test_all_rounds_are_those_of_attackers_that_never_stop_and_a_clip_bounds_each() -> None:
    generator = np.random.default_rng(1)
    terms, fades, clips = generator.uniform(size=(5, 6)), generator.uniform(size=5), generator.uniform(size=5)
    for count in (5, 9):
        assert unknown_rounds_drift(terms, fades, count, clip_norms=clips) == pytest.approx(
            fixed_attackers_drift(terms, fades, clip_norms=clips)
        )
        assert unknown_rounds_drift(terms, fades, count, clip_norms=clips, lasting=False) == pytest.approx(
            variable_attackers_drift(terms, fades, clip_norms=clips)
        )
    assert (unknown_rounds_drift(terms, fades, 1, clip_norms=0.0) == 0.0).all()


def test_the_worst_rounds_are_the_largest_drifts() -> None:
    drifts = np.array([[0.5, 0.1], [0.25, 0.3], [0.0, 0.2]])
    assert worst_rounds(drifts, 1).tolist() == [0.5, 0.3]
    assert worst_rounds(drifts, 3) == pytest.approx(drifts.sum(axis=0))
    with pytest.raises(ValueError, match="at least one round"):
        worst_rounds(drifts, 0)
