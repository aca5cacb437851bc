"""The divergence of several attacked rounds, and that one of them is the paper's formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from crfl_core.certification.formulas import kl_budget, kl_divergence, log_contraction, log_radius

runs = st.integers(1, 8).flatmap(
    lambda count: st.tuples(
        st.lists(st.sampled_from([0.0, 0.0, 0.1, 2.0]), min_size=count, max_size=count),
        st.lists(st.floats(0.01, 3.0), min_size=count, max_size=count),
        st.lists(st.floats(0.01, 10.0), min_size=count, max_size=count),
    )
)


@settings(max_examples=100, deadline=None)
@given(run=runs)
def test_the_bound_is_the_recursion_of_the_rounds(run: tuple[list[float], list[float], list[float]]) -> None:
    divergence = 0.0
    for drift, std, clip in zip(*run, strict=True):
        added = drift**2 / (2.0 * std**2)
        divergence = divergence + added if drift > 0 else divergence * (2.0 * ndtr(clip / std) - 1.0)
    assert kl_divergence(*run) == pytest.approx(divergence, rel=1e-9)


def test_at_the_papers_radius_one_attack_uses_up_the_papers_budget() -> None:
    """Its drift is bounded by `2 L_Z S delta`, so the divergence at the radius is the threshold of Theorem 3."""
    clips, stds = np.full(5, 0.02), np.full(5, 0.01)
    budget = float(kl_budget(0.7, 0.1))
    radius = math.exp(
        log_radius(
            budget, noise_std=0.01, lipschitz=3.0, strengths=[7.5e-4], contraction=log_contraction(clips[1:], stds[1:])
        )
    )
    drifts = [2.0 * 3.0 * 7.5e-4 * radius, 0.0, 0.0, 0.0, 0.0]
    assert kl_divergence(drifts, stds, clips) == pytest.approx(budget, rel=1e-12)


def test_a_drift_without_noise_is_infinite_unless_it_is_forgotten() -> None:
    assert kl_divergence([1.0, 0.0], [0.0, 1.0], [1.0, 1.0]) == math.inf
    assert kl_divergence([1.0, 0.0], [0.0, 1.0], [1.0, 0.0]) == 0.0
    assert kl_divergence([0.0, 0.0], [0.0, 0.0], [1.0, 1.0]) == 0.0


def test_rounds_without_noise_do_not_contract() -> None:
    assert kl_divergence([1.0, 0.0], [1.0, 0.0], [1.0, 1.0]) == 0.5


@pytest.mark.parametrize("ratio", [1e-3, 1.0, 300.0, 1e6])
def test_a_hundred_thousand_rounds_neither_overflow_nor_warn(ratio: float) -> None:
    drifts = np.zeros(100_000)
    drifts[0] = 1.0
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = kl_divergence(drifts, np.ones(100_000), np.full(100_000, ratio))
    assert found == (0.5 if ratio >= 300.0 else 0.0)
