"""The paper's theorems as numbers: a delta for every attacker, what every round leaves, several attacked rounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crfl_core.certification.formulas import (
    attack_divergence,
    divergence_by_round,
    joint_log_radius,
    kl_budget,
    log_contraction,
    log_radius,
)

STRENGTHS = st.lists(st.floats(1e-5, 1.0), min_size=1, max_size=6)
RATIOS = st.lists(st.floats(0.2, 40.0), min_size=0, max_size=8)


@given(strengths=STRENGTHS, ratios=RATIOS, p_a=st.floats(0.6, 0.99))
def test_theorem_1_with_equal_deltas_is_corollary_1(strengths: list[float], ratios: list[float], p_a: float) -> None:
    """At the radius of the corollary the divergence that is left is the budget of the vote."""
    budget, noises = kl_budget(p_a, 0.1), [0.5] * (len(ratios) + 1)
    clips = [1.0, *(0.5 * ratio for ratio in ratios)]
    shared: dict[str, Any] = {"noise_std": 0.5, "lipschitz": 3.0, "strengths": strengths}
    radius = math.exp(log_radius(budget, contraction=log_contraction(clips[1:], noises[1:]), **shared))
    added = attack_divergence([radius] * len(strengths), **shared)
    left = divergence_by_round([added, *[0.0] * len(ratios)], clips, noises)
    assert float(left[-1]) == pytest.approx(float(budget), rel=1e-9)
    assert (np.diff(left) <= 0).all()


@given(strengths=STRENGTHS, data=st.data())
def test_unequal_deltas_count_by_their_squares(strengths: list[float], data: st.DataObject) -> None:
    count = len(strengths)
    deltas = data.draw(st.lists(st.floats(0.0, 5.0), min_size=count, max_size=count))
    found = attack_divergence(deltas, noise_std=0.1, lipschitz=2.0, strengths=strengths)
    by_hand = 2 * count * sum((s * 2.0 * delta) ** 2 for s, delta in zip(strengths, deltas, strict=True)) / 0.01
    assert found == pytest.approx(by_hand, rel=1e-9, abs=1e-300)
    largest = attack_divergence([max(deltas)] * count, noise_std=0.1, lipschitz=2.0, strengths=strengths)
    assert found <= largest * (1 + 1e-12)


def test_without_noise_any_change_is_seen_and_none_is_not() -> None:
    assert attack_divergence([0.1], noise_std=0.0, lipschitz=1.0, strengths=[1.0]) == math.inf
    assert attack_divergence([0.0], noise_std=0.0, lipschitz=1.0, strengths=[1.0]) == 0.0


@given(
    pushes=st.lists(st.sampled_from([0.0, 0.1, 0.5, 2.0]), min_size=1, max_size=10),
    noise_std=st.floats(0.1, 3.0),
)
def test_the_sum_bounds_the_divergence_of_models_that_are_only_pushed(pushes: list[float], noise_std: float) -> None:
    """Without clip and training the final models are Gaussians, whose divergence is known."""
    added = [push**2 / (2 * noise_std**2) for push in pushes]
    bound = divergence_by_round(added, [math.inf] * len(pushes), [noise_std] * len(pushes))
    exact = sum(pushes) ** 2 / (2 * len(pushes) * noise_std**2)
    assert exact <= bound[-1] * (1 + 1e-12)
    assert float(bound[-1]) == pytest.approx(sum(added), rel=1e-12)


@given(radii=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6))
def test_the_radius_of_several_rounds_is_below_that_of_each(radii: list[float]) -> None:
    together = float(np.exp(joint_log_radius(np.log(radii))))
    assert together <= min(radii) * (1 + 1e-12)
    assert together >= min(radii) / math.sqrt(len(radii)) * (1 - 1e-12)
    assert float(joint_log_radius([math.log(radii[0])])) == math.log(radii[0])


def test_rounds_without_a_radius_and_rounds_with_every_radius() -> None:
    assert joint_log_radius([-math.inf, 1.0]) == -math.inf
    assert joint_log_radius([math.inf, 1.0]) == 1.0
    assert joint_log_radius([[math.inf, -math.inf]] * 2).tolist() == [math.inf, -math.inf]
