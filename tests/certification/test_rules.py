"""From votes to thresholds: reference values, exactness, extremes."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr, ndtri

from crfl_core.certification.formulas import (
    attack_strength,
    budget_per_unit_drift,
    feature_radius,
    gaussian_threshold,
    gaussian_threshold_of_logs,
    gradient_shift_rate,
    kl_budget,
    largest_attack,
    margin_threshold,
)
from tests.certification.reference import vectors

probabilities = st.tuples(st.floats(1e-6, 1.0), st.floats(0.0, 1.0)).map(
    lambda pair: (pair[0], pair[1] * (1 - pair[0]))
)


@pytest.mark.parametrize(("inputs", "outputs"), vectors("eps_mu"))
def test_thresholds_have_their_reference_values(inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    p_a, p_b = float(inputs["pA"]), float(inputs["pB"])
    tolerance = 1e-11 if p_a > 0.9999 else 1e-12
    assert kl_budget(p_a, p_b) == pytest.approx(outputs["eps"], rel=tolerance)
    assert gaussian_threshold(p_a, p_b) == pytest.approx(outputs["mu_gdp"], rel=tolerance)
    not_a = float(1 - Decimal(inputs["pA"]))
    of_logs = gaussian_threshold_of_logs(np.log(p_a), np.log(not_a), np.log(p_b))
    assert of_logs == pytest.approx(outputs["mu_gdp"], rel=1e-12)


@pytest.mark.parametrize(("inputs", "outputs"), vectors("tight_radius"))
def test_the_sound_radius_has_its_reference_value(inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    """MNIST's constants; the linear part of the gradient shift, one attacker, one run against the whole tail."""
    rate = float(gradient_shift_rate(float(inputs["B_aug"]) * float(inputs["rho_local"])))
    strength = attack_strength(1 / 20, 10.0, 0.001, 30 * 0.05)
    threshold = gaussian_threshold(float(inputs["pA"]), float(inputs["pB"]))
    assert rate == pytest.approx(outputs["L_Z"], rel=1e-12)
    assert strength == pytest.approx(outputs["S"], rel=1e-12)
    assert threshold == pytest.approx(outputs["mu_star"], rel=1e-12)
    stds = np.full(inputs["T"], float(inputs["sigma"]))
    prices = budget_per_unit_drift(stds, np.ones(inputs["T"]))
    for name, price in (("radius_single_run", prices[-1]), ("radius_tail", prices[inputs["t_adv"] - 1])):
        drift = largest_attack(threshold, price)
        radius = feature_radius(drift, lambda delta: strength * rate * delta)
        assert radius == pytest.approx(outputs[name], rel=1e-12)
        assert radius < outputs[name]


@settings(max_examples=100, deadline=None)
@given(pair=probabilities)
def test_the_gaussian_rule_is_exact_for_gaussians(pair: tuple[float, float]) -> None:
    """Half spaces of these probabilities, shifted against each other: they tie at the threshold."""
    p_a, p_b = pair
    mu = float(gaussian_threshold(p_a, p_b))
    if mu == 0.0:
        assert p_a <= p_b
    elif np.isfinite(mu):
        assert ndtri(p_a) - mu == pytest.approx(float(ndtri(p_b) + mu), abs=1e-9)


@settings(max_examples=300, deadline=None)
@given(pair=probabilities)
def test_the_gaussian_rule_beats_the_papers_by_a_tenth_at_least(pair: tuple[float, float]) -> None:
    p_a, p_b = pair
    gaussian, paper = float(gaussian_threshold(p_a, p_b)), math.sqrt(2.0 * kl_budget(p_a, p_b))
    assert gaussian >= 1.1 * paper or gaussian < 1e-6


@settings(max_examples=100, deadline=None)
@given(pair=probabilities, step=st.floats(0.0, 1.0))
def test_thresholds_grow_with_the_margin(pair: tuple[float, float], step: float) -> None:
    p_a, p_b = pair
    clearer = p_a + step * (1.0 - p_a - p_b), p_b * (1.0 - step)
    for rule in (gaussian_threshold, kl_budget):
        assert rule(*clearer) >= rule(p_a, p_b) * (1 - 1e-12)


def test_the_ends_are_exact() -> None:
    with np.errstate(all="raise"):
        assert gaussian_threshold([1.0, 1.0, 0.5, 0.5, 0.2], [0.0, 1.0, 0.0, 0.5, 0.7]).tolist() == [
            np.inf,
            0.0,
            np.inf,
            0.0,
            0.0,
        ]
        assert gaussian_threshold_of_logs(0.0, -np.inf, -np.inf) == np.inf
        assert gaussian_threshold_of_logs(np.log(0.5), np.log(0.5), np.log(0.5)) == 0.0


@pytest.mark.parametrize("distance", [0.5, 3.0, 20.0, 37.0, 1000.0, 1e6])
def test_logarithms_reach_where_probabilities_end(distance: float) -> None:
    """Two classes at this distance: p_A = Phi(d), 1 - p_A = p_B = Phi(-d), so the threshold is d."""
    tail = log_ndtr(-distance)
    assert gaussian_threshold_of_logs(log_ndtr(distance), tail, tail) == pytest.approx(distance, rel=1e-12)


def test_a_vote_of_one_minus_1e_300_has_a_finite_threshold() -> None:
    tail = np.log(1e-300)
    assert gaussian_threshold_of_logs(-1e-300, tail, tail) == pytest.approx(37.0470962993612, rel=1e-12)
    assert gaussian_threshold_of_logs(-1e-300, tail, tail - 100.0) > 37.05


@settings(max_examples=100, deadline=None)
@given(p_a=st.floats(0.01, 0.999), share=st.floats(0.01, 1.0))
def test_logarithms_and_probabilities_agree(p_a: float, share: float) -> None:
    p_b = share * (1.0 - p_a)
    of_logs = gaussian_threshold_of_logs(np.log(p_a), np.log1p(-p_a), np.log(p_b))
    assert of_logs == pytest.approx(float(gaussian_threshold(p_a, p_b)), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_the_margin_rule_is_exact(seed: int) -> None:
    """The shortest change of parameters that lets the second class catch up has the threshold's length."""
    generator = np.random.default_rng(seed)
    weights, x = generator.normal(size=(5, 4)), generator.normal(size=5)
    logits = x @ weights
    threshold = float(margin_threshold(logits, np.linalg.norm(x)))
    second, first = np.argsort(logits)[-2:]
    change = np.zeros_like(weights)
    change[:, first], change[:, second] = -x, x
    change *= threshold / np.linalg.norm(change)
    assert (x @ (weights + 1.001 * change)).argmax() == second
    assert (x @ (weights + 0.999 * change)).argmax() == first
    for _ in range(200):
        random = generator.normal(size=weights.shape)
        assert (x @ (weights + 0.999 * threshold * random / np.linalg.norm(random))).argmax() == first


def test_ties_have_no_margin() -> None:
    with np.errstate(all="raise"):
        assert margin_threshold([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]], [2.0, 0.0]).tolist() == [0.0, 0.0]


def test_a_certified_size_stays_below_its_threshold() -> None:
    thresholds = np.array([1e-300, 0.3, 7.0, 1e300])
    sizes = largest_attack(thresholds, 3.0)
    assert (sizes * 3.0 < thresholds).all()
    np.testing.assert_allclose(sizes * 3.0, thresholds, rtol=1e-12)


def test_no_threshold_means_no_certificate_and_free_attacks_an_infinite_one() -> None:
    with np.errstate(all="raise"):
        np.testing.assert_allclose(
            largest_attack([0.0, np.nan, np.inf, 1.0]), [np.nan, np.nan, np.inf, 1.0], rtol=1e-13
        )
        assert largest_attack(1.0) < 1.0
        assert largest_attack(1.0, per_unit=0.0) == np.inf
        assert largest_attack(1.0, per_unit=np.inf) == 0.0
        assert np.isnan(largest_attack(0.0, per_unit=0.0))
