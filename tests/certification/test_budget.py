"""The trade-off budget: reference values, a general-purpose optimiser, and laws."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from crfl_core.certification.formulas import Array, budget_per_unit_drift, tradeoff_budget
from tests.certification.reference import vectors

runs = st.integers(1, 8).flatmap(
    lambda count: st.tuples(
        st.lists(st.sampled_from([0.0, 0.0, 0.3, 1.0, 2.5]), min_size=count, max_size=count),
        st.lists(st.sampled_from([0.05, 0.2, 1.0, 3.0]), min_size=count, max_size=count),
        st.lists(st.sampled_from([0.3, 0.9, 1.0]), min_size=count, max_size=count),
    )
)


@pytest.mark.parametrize(("inputs", "outputs"), vectors("gdp_total"))
def test_the_budget_has_its_reference_value(inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    drifts, stds, lipschitz = ([float(x) for x in inputs[name]] for name in ("deltas", "sigmas", "lipschitz"))
    assert tradeoff_budget(drifts, stds, lipschitz) == pytest.approx(outputs["mu"], rel=1e-12)


def gap_after(shifts: Array, drifts: Array, lipschitz: Array) -> float:
    """What is left of the gap between the worlds if round t closes it by `shifts[t]`."""
    gap = 0.0
    for shift, drift, constant in zip(shifts, drifts, lipschitz, strict=True):
        gap = max(0.0, constant * gap + drift - shift)
    return gap


def optimal_shifts(drifts: Array, stds: Array, lipschitz: Array) -> Array:
    """The shifts that close the gap at least cost, by the max-min formula of isotonic regression, term by term."""
    products = np.append(lipschitz[1:], 1.0)[::-1].cumprod()[::-1]
    arriving, noise = drifts * products, np.square(stds * products)

    def rate(first: int, last: int) -> float:
        return float(arriving[first : last + 1].sum() / noise[first : last + 1].sum())

    rounds = range(len(drifts))
    rates = [max(min(rate(a, b) for b in rounds[t:]) for a in rounds[: t + 1]) for t in rounds]
    shifts: Array = np.array(rates) * noise / products
    return shifts


@settings(max_examples=100, deadline=None)
@given(run=runs)
def test_pooling_finds_the_cost_of_the_best_shifts(run: tuple[list[float], list[float], list[float]]) -> None:
    drifts, stds, lipschitz = (np.array(values) for values in run)
    shifts = optimal_shifts(drifts, stds, lipschitz)
    assert gap_after(shifts, drifts, lipschitz) == pytest.approx(0.0, abs=1e-12)
    assert tradeoff_budget(drifts, stds, lipschitz) == pytest.approx(np.linalg.norm(shifts / stds), rel=1e-12)


def test_a_general_solver_finds_the_same_budget() -> None:
    """Non-negative least squares for the increments of `d_t / v_t` made non-decreasing, with weights v_t."""
    generator = np.random.default_rng(0)
    for _ in range(20):
        drifts, stds = generator.exponential(size=9) * (generator.uniform(size=9) < 0.6), generator.uniform(0.2, 2.0, 9)
        increments, _ = nnls(stds[:, None] * np.tril(np.ones((9, 9))), drifts / stds)
        expected = np.linalg.norm(stds * increments.cumsum())
        assert tradeoff_budget(drifts, stds, np.ones(9)) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(run=runs, seed=st.integers(0, 2**32 - 1))
def test_no_way_to_close_the_gap_costs_less(run: tuple[list[float], list[float], list[float]], seed: int) -> None:
    drifts, stds, lipschitz = (np.array(values) for values in run)
    generator, gap, shifts = np.random.default_rng(seed), 0.0, []
    for place, (drift, constant) in enumerate(zip(drifts, lipschitz, strict=True)):
        gap = constant * gap + drift
        shifts.append(gap if place == len(drifts) - 1 else gap * generator.uniform())
        gap -= shifts[-1]
    assert gap_after(np.array(shifts), drifts, lipschitz) == pytest.approx(0.0, abs=1e-12)
    cost = np.linalg.norm(np.array(shifts) / stds)
    assert tradeoff_budget(drifts, stds, lipschitz) <= cost * (1 + 1e-12)


@settings(max_examples=100, deadline=None)
@given(run=runs)
def test_the_budget_lies_between_a_linear_process_and_plain_composition(
    run: tuple[list[float], list[float], list[float]],
) -> None:
    drifts, stds, lipschitz = (np.array(values) for values in run)
    budget = tradeoff_budget(drifts, stds, lipschitz)
    # On a line, with aligned drifts, both final models are normal: their distance in noise units is what happens.
    products = np.append(lipschitz[1:], 1.0)[::-1].cumprod()[::-1]
    happens = (drifts * products).sum() / np.linalg.norm(stds * products)
    assert happens * (1 - 1e-12) <= budget <= np.linalg.norm(drifts / stds) * (1 + 1e-12)


@settings(max_examples=100, deadline=None)
@given(run=runs, factor=st.floats(1.0, 10.0), place=st.integers(0, 7))
def test_the_budget_grows_with_drift_and_falls_with_noise(
    run: tuple[list[float], list[float], list[float]], factor: float, place: int
) -> None:
    drifts, stds, lipschitz = (np.array(values) for values in run)
    budget, place = float(tradeoff_budget(drifts, stds, lipschitz)), place % len(drifts)
    more, louder, slower = drifts.copy(), stds.copy(), lipschitz.copy()
    more[place] += factor
    louder[place] *= factor
    assert tradeoff_budget(more, stds, lipschitz) >= budget * (1 - 1e-12)
    assert tradeoff_budget(drifts, louder, lipschitz) <= budget * (1 + 1e-12)
    assert tradeoff_budget(factor * drifts, stds, lipschitz) == pytest.approx(factor * budget)
    slower[place] = 1.0
    assert tradeoff_budget(drifts, stds, slower) >= budget * (1 - 1e-12) or place == 0


@settings(max_examples=100, deadline=None)
@given(run=runs)
def test_a_single_attack_costs_its_drift_times_the_unit_price(
    run: tuple[list[float], list[float], list[float]],
) -> None:
    _, stds, lipschitz = run
    prices = budget_per_unit_drift(stds, lipschitz)
    alone = tradeoff_budget(np.eye(len(stds)) * 0.3, stds, lipschitz)
    np.testing.assert_allclose(alone, 0.3 * prices, rtol=1e-12)


def test_a_drift_waits_for_the_next_noise() -> None:
    assert tradeoff_budget([1.0, 0.0, 0.0], [0.0, 0.0, 2.0], np.ones(3)) == pytest.approx(0.5)
    assert tradeoff_budget([1.0, 1.0, 0.0], [0.0, 0.0, 2.0], np.ones(3)) == pytest.approx(1.0)
    assert budget_per_unit_drift([0.0, 0.0, 2.0], np.ones(3)).tolist() == [0.5, 0.5, 0.5]


def test_a_drift_after_the_last_noise_is_seen() -> None:
    assert tradeoff_budget([0.0, 1.0], [1.0, 0.0], np.ones(2)) == np.inf
    assert tradeoff_budget([1.0, 1.0], [1.0, 0.0], np.ones(2)) == np.inf
    assert budget_per_unit_drift([1.0, 0.0], np.ones(2)).tolist() == [1.0, np.inf]


def test_no_drift_needs_no_noise() -> None:
    assert tradeoff_budget([0.0, 0.0], [0.0, 0.0], np.ones(2)) == 0.0


def test_a_round_may_forget_everything() -> None:
    assert tradeoff_budget([5.0, 0.0, 0.0], np.zeros(3), [1.0, 0.0, 1.0]) == 0.0
    assert tradeoff_budget([5.0, 0.3, 0.0], [0.0, 0.1, 0.0], [1.0, 0.0, 1.0]) == pytest.approx(3.0)
    assert budget_per_unit_drift(np.ones(3), [1.0, 0.0, 1.0])[0] == 0.0


def test_a_hundred_thousand_rounds_are_fast_and_do_not_underflow_into_nonsense() -> None:
    count = 100_000
    begin = time.process_time()
    steady = tradeoff_budget(np.full(count, 0.2), np.full(count, 0.1), np.full(count, 0.9))
    assert time.process_time() - begin < 5.0
    assert steady == pytest.approx(2.0 * np.sqrt(1.9 / 0.1), rel=1e-9)
    early = np.zeros(count)
    early[0] = 1.0
    assert tradeoff_budget(early, np.full(count, 0.1), np.full(count, 0.9)) == 0.0
    assert tradeoff_budget(early, np.full(count, 0.1), np.ones(count)) == pytest.approx(10.0 / np.sqrt(count))
    with np.errstate(all="raise"):
        random = np.random.default_rng(0).exponential(size=(3, count))
        assert np.isfinite(tradeoff_budget(random[0], random[1], np.ones(count)))
