"""From certified drift to radius, ratio and counts: exact ends, brute force, and the laws of the whole chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crfl_core.certification.formulas import (
    Array,
    SampleChange,
    attack_strength,
    budget_per_unit_drift,
    client_count,
    effective_steps,
    feature_radius,
    gaussian_threshold,
    gradient_shift,
    largest_attack,
    replacement_shift,
    sample_count,
    sample_ratio,
    scale_terms,
    tradeoff_budget,
    update_bound,
    worst_poisoned_share,
    worst_totals,
)


def chain(
    change: SampleChange = "features",
    *,
    p_a: float = 0.9,
    p_b: float = 0.05,
    attackers: int = 1,
    scale: float = 10.0,
    rate: float = 0.01,
    steps: int = 10,
    ratio: float = 0.1,
    noise: float = 0.05,
    rounds: int = 5,
    domain: float = np.inf,
    honest: bool = False,
) -> float:
    """The feature radius of a prediction: ten equal clients, unit inputs, an attack in the first of some rounds."""
    strength = attack_strength(np.full(10, 0.1), scale, rate, ratio * effective_steps(rate, steps, 0.0))
    scaling = scale_terms(0.1, scale, update_bound(rate, steps, 1.0)) if honest else 0.0

    def total(delta: Array) -> Array:
        shift = gradient_shift(change, delta, input_bound=1.0, start_norm=2.0, path=rate * steps, domain_bound=domain)
        return worst_totals(shift[:, None] * strength + scaling)[:, attackers]

    price = budget_per_unit_drift(np.full(rounds, noise), np.ones(rounds))[0]
    return float(feature_radius(largest_attack(gaussian_threshold(p_a, p_b), price), total))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), factor=st.floats(1.0, 5.0))
def test_the_radius_falls_with_everything_that_helps_the_attacker(data: st.DataObject, factor: float) -> None:
    base: dict[str, Any] = {"attackers": 1, "scale": 10.0, "rate": 0.01, "steps": 10, "ratio": 0.1}
    name = data.draw(st.sampled_from(sorted(base)))
    stronger = base | {name: int(np.ceil(base[name] * factor)) if isinstance(base[name], int) else base[name] * factor}
    assert chain(**stronger) <= chain(**base) * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(p_a=st.floats(0.5, 0.99), step=st.floats(0.0, 1.0), noise=st.floats(1.0, 5.0), rounds=st.integers(5, 100))
def test_the_radius_grows_with_the_margin_and_the_noise(p_a: float, step: float, noise: float, rounds: int) -> None:
    base = chain(p_a=p_a, p_b=1.0 - p_a)
    clearer = p_a + step * (0.999 - p_a)
    assert np.isnan(base) or chain(p_a=clearer, p_b=1.0 - clearer) >= base * (1 - 1e-12)
    assert np.isnan(base) or chain(p_a=p_a, p_b=1.0 - p_a, noise=0.05 * noise, rounds=rounds) >= base * (1 - 1e-12)


def test_a_bounded_domain_can_make_the_radius_infinite() -> None:
    assert np.isfinite(chain(domain=np.inf, noise=1.0))
    assert chain(domain=1.0, noise=1.0) == np.inf
    assert chain(domain=1.0, noise=0.001) < 1.0


def test_flipped_labels_and_scaling_may_leave_nothing_certified() -> None:
    assert np.isnan(chain("features+labels", noise=0.001))
    assert chain("features+labels", noise=0.5) > 0
    assert np.isnan(chain(honest=True, noise=0.01))
    assert 0 < chain(honest=True, noise=0.5) < chain(noise=0.5)


def test_an_undecided_vote_has_no_radius() -> None:
    assert np.isnan(chain(p_a=0.4, p_b=0.4))


@settings(max_examples=100, deadline=None)
@given(
    drifts=st.lists(st.floats(0.0, 1e3), min_size=1, max_size=20),
    fixed=st.floats(0.0, 1.0),
    slope=st.floats(1e-3, 1e3),
    cap=st.floats(0.1, 100.0),
)
def test_the_radius_is_the_largest_that_fits(drifts: list[float], fixed: float, slope: float, cap: float) -> None:
    def total(delta: Array) -> Array:
        return fixed + np.minimum(slope * delta, cap)

    limits = np.array(drifts)
    radii = feature_radius(limits, total)
    np.testing.assert_array_equal(np.isnan(radii), limits < fixed)
    np.testing.assert_array_equal(np.isposinf(radii), limits >= fixed + cap)
    inside = np.isfinite(radii)
    assert (total(radii[inside]) <= limits[inside]).all()
    assert (total(radii[inside] * (1 + 1e-9) + 1e-13) > limits[inside] - 1e-12 * slope).all()


def test_crooked_costs_are_inverted_as_well() -> None:
    """Convex, concave, with kinks and over many orders of magnitude."""

    def total(delta: Array) -> Array:
        return np.maximum(np.minimum(delta**3, 5.0 * np.sqrt(delta)), 1e-3 * delta)

    limits = np.geomspace(1e-40, 1e6, 3000)
    radii = feature_radius(limits, total)
    assert (total(radii) <= limits).all()
    np.testing.assert_allclose(total(radii), limits, rtol=1e-12)
    assert (np.diff(radii) > 0).all()


def test_a_cost_that_jumps_is_cut_just_before_the_jump() -> None:
    radius = feature_radius(1.0, lambda delta: np.where(delta < 3.0, 0.5, 2.0))
    assert radius == pytest.approx(3.0, rel=1e-12)
    assert radius < 3.0


def test_the_ends_of_the_radius_are_exact() -> None:
    def total(delta: Array) -> Array:
        return 0.5 + np.minimum(delta, 1.0)

    found = feature_radius([0.4999, 0.5, 1.5, np.inf, np.nan], total)
    np.testing.assert_array_equal(found, [np.nan, 0.0, np.inf, np.inf, np.nan])
    assert feature_radius(np.inf, lambda delta: delta) == np.inf
    assert feature_radius(1e-200, lambda delta: delta) == 0.0  # below the smallest radius that is looked for
    assert feature_radius([], total).shape == (0,)


def test_attackers_without_weight_change_nothing() -> None:
    """Nothing bounds what they may do to their inputs, and it does not matter."""

    def total(delta: Array) -> Array:
        return 0.0 * delta + 0.1 * delta

    assert feature_radius(0.5, total) == pytest.approx(5.0)


def test_a_million_samples_are_inverted_together() -> None:
    limits = np.random.default_rng(0).exponential(size=1_000_000)
    radii = feature_radius(limits, lambda delta: 0.01 * delta + np.minimum(delta, 2.0))
    np.testing.assert_allclose(0.01 * radii + np.minimum(radii, 2.0), limits, rtol=1e-12)


def test_budgets_of_several_attacked_rounds_are_inverted_like_drifts() -> None:
    """Two attacked rounds with different gradients: mu grows with delta, and the radius is where it meets mu*."""
    stds, lipschitz = np.full(4, 0.1), np.full(4, 0.95)

    def budget(delta: Array) -> Array:
        shifts = gradient_shift(
            "features", delta, input_bound=1.0, start_norm=np.array([[1.0], [4.0]]), path=0.1, domain_bound=2.0
        )
        drifts = np.zeros((len(delta), 4))
        drifts[:, [0, 2]] = 0.05 * shifts.T
        return tradeoff_budget(drifts, stds, lipschitz)

    radius = feature_radius(largest_attack(gaussian_threshold(0.8, 0.1)), budget)
    assert budget(np.array([radius]))[0] == pytest.approx(float(gaussian_threshold(0.8, 0.1)), rel=1e-10)


@settings(max_examples=100, deadline=None)
@given(drift=st.floats(0.0, 2.0), fixed=st.floats(0.0, 0.5), full=st.floats(0.01, 5.0))
def test_the_sample_ratio_is_the_closed_form(drift: float, fixed: float, full: float) -> None:
    found = sample_ratio(drift, lambda share: fixed + full * share)
    if drift < fixed:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(min(1.0, (drift - fixed) / full), rel=1e-9, abs=1e-12)
        assert found <= 1.0


@settings(max_examples=40, deadline=None)
@given(drift=st.floats(0.0, 3.0), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_the_sample_count_is_found_by_trying_all(drift: float, sizes: list[int]) -> None:
    """A client with short batches, all steps of one epoch; `floor(n x ratio)` would overstate it."""
    counts = np.arange(sum(sizes) + 1)
    costs = 0.3 * replacement_shift(1.0, 1.0) * worst_poisoned_share(counts, sizes, len(sizes))
    expected = max(count for count in counts if costs[count] <= drift)
    assert sample_count(drift, costs) == expected


def test_one_step_of_an_epoch_can_hold_all_the_poison() -> None:
    """600 samples, one batch of 60: the ratio 0.05 in every batch is 3 samples, not the 30 of `floor(n x ratio)`."""
    costs = worst_poisoned_share(np.arange(601), [60], steps_per_epoch=10)
    assert sample_ratio(0.05 + 1e-12, lambda share: share) == pytest.approx(0.05)
    assert sample_count(0.05 + 1e-12, costs) == 3.0


@settings(max_examples=100, deadline=None)
@given(terms=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8), drift=st.floats(0.0, 5.0))
def test_the_client_count_holds_for_any_choice_of_attackers(terms: list[float], drift: float) -> None:
    found = int(client_count(drift, worst_totals(terms)))
    ordered = sorted(terms, reverse=True)
    assert sum(ordered[:found]) <= drift * (1 + 1e-12)
    assert found == len(terms) or sum(ordered[: found + 1]) > drift * (1 - 1e-12)


def test_counts_of_many_samples_come_from_one_table() -> None:
    costs = worst_totals(np.random.default_rng(0).exponential(size=1000))
    drifts = np.append(np.random.default_rng(1).uniform(0.0, 1500.0, 100_000), np.nan)
    found = client_count(drifts, costs)
    assert np.isnan(found[-1])
    assert (costs[found[:-1].astype(int)] <= drifts[:-1]).all()
    assert found[:-1].max() == 1000.0
