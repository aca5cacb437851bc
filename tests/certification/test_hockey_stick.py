"""Hockey-stick divergences: reference values, contraction of real distributions, and the rule for votes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from scipy.special import ndtr

from crfl_core.certification.formulas import (
    Array,
    gaussian_threshold,
    hockey_stick_threshold,
    kl_budget,
    log_divergence,
    log_theta,
)
from crfl_core.certification.formulas.hockey_stick import LOG_GAMMAS
from tests.certification.reference import vectors


def theta(log_gamma: ArrayLike, distance: ArrayLike) -> Array:
    return np.exp(log_theta(log_gamma, distance))


def certifies(p_a: float, p_b: float, log_divergences: Array) -> bool:
    """The vote rule as it is stated, gamma by gamma."""
    gamma, d = np.exp(LOG_GAMMAS), np.exp(log_divergences)
    kept = np.maximum((p_a - d) / gamma, 1.0 - gamma * (1.0 - p_a) - d).max()
    gained = np.minimum(gamma * p_b + d, 1.0 - (1.0 - p_b - d) / gamma).min()
    return bool(kept > gained)


@pytest.mark.parametrize(("inputs", "outputs"), vectors("theta"))
def test_theta_has_its_reference_value(inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    assert theta(float(inputs["log_gamma"]), float(inputs["r"])) == pytest.approx(outputs["theta"], rel=1e-12)


@pytest.mark.parametrize(("inputs", "outputs"), vectors("hs_profile"))
def test_the_profile_has_its_reference_value(inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    diameters = np.full(inputs["rounds"], 2.0 * float(inputs["rho_over_sigma"]))
    found = log_divergence(float(inputs["log_gamma"]), float(inputs["mu0"]), diameters)
    assert np.exp(found) == pytest.approx(outputs["delta"], rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(log_gamma=st.floats(0.0, 30.0), distance=st.floats(0.01, 20.0))
def test_theta_is_its_formula_where_that_does_not_cancel(log_gamma: float, distance: float) -> None:
    upper = float(ndtr(distance / 2.0 - log_gamma / distance))
    direct = upper - np.exp(log_gamma) * float(ndtr(-distance / 2.0 - log_gamma / distance))
    assert theta(log_gamma, distance) == pytest.approx(direct, rel=1e-9, abs=1e-13 * upper + 1e-290)


@settings(max_examples=200, deadline=None)
@given(log_gamma=st.floats(0.0, 1e6), distance=st.floats(1e-6, 1e6), factor=st.floats(1.001, 10.0))
def test_theta_grows_with_the_distance_and_falls_with_gamma(log_gamma: float, distance: float, factor: float) -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        base = float(log_theta(log_gamma, distance))
        assert base <= 0.0
        slack = 1e-9 * (1.0 + abs(base))
        assert log_theta(log_gamma, distance * factor) >= base - slack
        assert log_theta(log_gamma * factor, distance) <= base + slack


def test_the_ends_of_theta_are_exact() -> None:
    assert theta([0.0, 5.0], 0.0).tolist() == [0.0, 0.0]
    assert theta([0.0, 5.0], np.inf).tolist() == [1.0, 1.0]


def divergence(p: Array, q: Array, gamma: float) -> float:
    """`E_gamma` of two discrete laws."""
    return float(np.maximum(p - gamma * q, 0.0).sum())


@pytest.mark.parametrize("seed", range(15))
def test_a_noisy_clipped_round_shrinks_the_divergence_of_any_laws_as_stated(seed: int) -> None:
    """Points in a ball, a random map of the ball into itself, noise on a fine grid: one round of anything."""
    generator = np.random.default_rng(seed)
    radius = generator.choice([0.3, 1.0, 2.0])
    points = radius * generator.uniform(-1.0, 1.0, size=6)
    p, q = generator.dirichlet(np.full(6, 0.5), size=2)
    grid = np.arange(-9.0, 9.0, 0.01)
    kernel = np.exp(-np.square(grid - points[:, None]) / 2.0) * 0.01 / np.sqrt(2.0 * np.pi)
    for gamma in (1.0, 1.2, 2.0, 5.0):
        for first, second in ((p, q), (q, p)):
            before = divergence(first, second, gamma)
            after = divergence(first @ kernel, second @ kernel, gamma)
            if before == 0.0:
                assert after == pytest.approx(0.0, abs=1e-12)
                continue
            bound = before * theta(np.log1p((gamma - 1.0) / before), 2.0 * radius)
            assert after <= bound * (1 + 1e-9)


def test_the_worst_laws_reach_the_stated_contraction() -> None:
    """Two points at opposite ends of the ball, one certain, one not."""
    grid = np.arange(-12.0, 12.0, 0.001)
    kernel = np.exp(-np.square(grid - np.array([[-1.0], [1.0]])) / 2.0) * 0.001 / np.sqrt(2.0 * np.pi)
    p, q = np.array([0.7, 0.3]), np.array([0.2, 0.8])
    before = divergence(p, q, 1.0)
    assert divergence(p @ kernel, q @ kernel, 1.0) == pytest.approx(before * float(theta(0.0, 2.0)), rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    budget=st.floats(0.01, 50.0),
    diameters=st.lists(st.floats(0.1, 30.0), max_size=6),
    more=st.floats(0.1, 30.0),
    factor=st.floats(1.0, 3.0),
)
def test_divergence_falls_with_every_round_and_grows_with_the_attack(
    budget: float, diameters: list[float], more: float, factor: float
) -> None:
    base = log_divergence(LOG_GAMMAS, budget, diameters)
    slack = 1e-9 * (1.0 + np.abs(base))
    assert (log_divergence(LOG_GAMMAS, budget, [*diameters, more]) <= base + slack).all()
    assert (log_divergence(LOG_GAMMAS, factor * budget, diameters) >= base - slack).all()
    assert (np.diff(base) <= slack[1:]).all()
    product = base[0] - log_theta(0.0, budget) if diameters else 0.0
    assert product == pytest.approx(float(np.sum(log_theta(0.0, np.array(diameters)))), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("diameter", [1e-3, 2.0, 7.0, 600.0, 2e6, np.inf])
def test_a_hundred_thousand_rounds_are_bounded_without_a_warning(diameter: float) -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = log_divergence(LOG_GAMMAS, 3.0, np.full(100_000, diameter))
    assert not np.isnan(found).any()
    assert (found <= log_theta(LOG_GAMMAS, 3.0)).all()
    if diameter >= 600.0:
        np.testing.assert_array_equal(found, log_theta(LOG_GAMMAS, 3.0))


def test_a_certified_vote_never_differs_in_the_clean_world() -> None:
    """Random pairs of laws of a vote among four classes, with their true divergences."""
    generator, certified = np.random.default_rng(0), 0
    for _ in range(1000):
        clean, other = generator.dirichlet(np.full(4, generator.choice([0.3, 3.0])), size=2)
        mixture = generator.uniform()
        observed = mixture * clean + (1.0 - mixture) * other
        ratios = np.exp(LOG_GAMMAS)[:, None]
        both = np.maximum(
            np.maximum(clean - ratios * observed, 0.0).sum(axis=1),
            np.maximum(observed - ratios * clean, 0.0).sum(axis=1),
        )
        second, first = np.sort(observed)[-2:]
        with np.errstate(divide="ignore"):
            if certifies(first, second, np.log(both)):
                certified += 1
                assert clean.argmax() == observed.argmax()
    assert 100 < certified < 900


def test_every_threshold_of_the_table_passes_the_rule_itself() -> None:
    generator = np.random.default_rng(0)
    p_a = generator.uniform(0.3, 0.999, 40)
    p_b = generator.uniform(0.001, 1.0, 40) * np.minimum(p_a, 1.0 - p_a)
    diameters = np.full(8, 4.5)
    found = hockey_stick_threshold(p_a, p_b, diameters)
    gaussian = gaussian_threshold(p_a, p_b)
    assert (found >= gaussian).all()
    assert (found > 1.02 * gaussian).mean() > 0.9
    for a, b, budget in zip(p_a, p_b, found, strict=True):
        assert certifies(a, b, log_divergence(LOG_GAMMAS, min(budget, 80.0), diameters))
        too_much = log_divergence(LOG_GAMMAS, 1.05 * budget, diameters)
        assert np.isinf(budget) or not certifies(a, b, too_much)


def test_strong_contraction_certifies_any_attack() -> None:
    weak_noise, strong_noise = np.full(20, 600.0), np.full(20, 2.0)
    assert hockey_stick_threshold(0.7, 0.1, strong_noise) == np.inf
    assert hockey_stick_threshold(0.7, 0.1, weak_noise) == gaussian_threshold(0.7, 0.1)
    assert hockey_stick_threshold(0.7, 0.1, [], largest_budget=0.9) == np.inf
    assert hockey_stick_threshold(0.7, 0.1, [], largest_budget=0.0) == np.inf
    assert hockey_stick_threshold(0.7, 0.1, [4.0, 4.0, 4.0], largest_budget=0.95) == np.inf


def test_unclear_and_unanimous_votes_keep_their_threshold() -> None:
    assert hockey_stick_threshold([0.5, 0.2, 1.0], [0.5, 0.3, 0.0], [2.0]).tolist() == [0.0, 0.0, np.inf]


@pytest.mark.parametrize(("p_a", "p_b"), [(0.7, 0.1), (0.9, 0.05), (0.55, 0.4), (0.99, 0.01)])
@pytest.mark.parametrize("rounds", [0, 3, 10])
def test_the_rule_dominates_the_papers_divergence(p_a: float, p_b: float, rounds: int) -> None:
    """KL contracts by the product of theta_1, so the paper's threshold grows by its square root, and is still lower."""
    diameters = np.full(rounds, 4.0)
    paper = np.sqrt(2.0 * kl_budget(p_a, p_b)) * np.exp(-0.5 * log_theta(0.0, diameters).sum())
    assert hockey_stick_threshold(p_a, p_b, diameters) >= paper


def test_a_million_votes_share_one_table() -> None:
    generator = np.random.default_rng(1)
    p_a = generator.uniform(0.5, 1.0, 1_000_000)
    found = hockey_stick_threshold(p_a, 1.0 - p_a, np.full(5, 5.0))
    assert found.shape == p_a.shape
    order = np.argsort(p_a)
    clear = order[p_a[order] > 0.6][::1000]
    assert (np.diff(np.minimum(found[clear], 100.0)) >= -0.02 * found[clear][:-1]).all()
