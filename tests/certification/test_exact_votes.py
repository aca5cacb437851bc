"""Exact votes of linear models: reference values, brute-force quadrature, sampling, and the stated error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr, logsumexp

from crfl_core.certification.formulas import Array, exact_votes, gaussian_threshold_of_logs, margin_threshold
from tests.certification.reference import vectors

LOG_SQRT_2PI = 0.5 * np.log(2.0 * np.pi)


@pytest.mark.parametrize(("inputs", "outputs"), vectors("exact_votes"))
def test_votes_have_their_reference_values(inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    logits, std = [float(value) for value in inputs["logits"]], float(inputs["s"])
    votes = exact_votes([logits], [std], relative_error=1e-13)
    assert votes.first[0] == np.argmax(logits)
    assert np.exp(votes.log_p_a[0]) == pytest.approx(outputs["pA"], rel=1e-12)
    assert np.exp(votes.log_rest[0]) == pytest.approx(outputs["one_minus_pA"], rel=1e-12)
    assert np.exp(votes.log_p_b[0]) == pytest.approx(outputs["pB"], rel=1e-12)


def brute_force(gaps: Array) -> tuple[float, float, float]:
    """The logarithms of p_A, of the sum of all other classes and of p_B, from one long sum over a fine grid.

    Gaps are those to the winner, ascending. No table, no products: logarithms of normal probabilities, class by class.
    """
    v = np.arange(-gaps.max() / 2.0 - 16.0, 16.0, 0.02 if len(gaps) > 20 else 0.05)
    positions = np.append(0.0, -gaps)
    below = log_ndtr(v - positions[:, None])
    densities = -np.square(v - positions[:, None]) / 2.0 - LOG_SQRT_2PI
    each = logsumexp(densities + below.sum(axis=0) - below, axis=1) + np.log(v[1] - v[0])
    return float(each[0]), float(logsumexp(each[1:])), float(each[1])


GAPS = {
    "two classes, a tie": [0.0],
    "two classes": [3.0],
    "ten classes, a tie of all": [0.0] * 9,
    "a tie of two": [0.0, 8.0, 9.0],
    "one far ahead of nine": [30.0] * 9,
    "just inside the exact range": [39.99, 40.5, 41.0, 60.0, 1e9],
    "a close third": [12.0, 12.05, 30.0],
    "half of them negligible": [2.0, 2.5, 11.0, 12.0, 13.0, 14.0, 100.0],
    "many classes": [0.3 * i for i in range(1, 47)],
}


@pytest.mark.parametrize("error", [1e-13, 1e-10, 1e-6])
@pytest.mark.parametrize("gaps", GAPS.values(), ids=GAPS.keys())
def test_votes_are_as_exact_as_stated_and_on_the_safe_side(gaps: list[float], error: float) -> None:
    # A class 1e9 behind only makes the grid of the brute force long.
    truth = brute_force(np.minimum(gaps, 80.0))
    votes = exact_votes([[0.0, *(-np.array(gaps))]], [1.0], relative_error=error)
    rounding = 1e-12 if max(gaps) > 20 else 1e-13
    assert -2.0 * error - rounding <= votes.log_p_a[0] - truth[0] <= rounding
    assert -rounding <= votes.log_rest[0] - truth[1] <= 2.0 * error + rounding
    assert -rounding <= votes.log_p_b[0] - truth[2] <= 2.0 * error + rounding


def test_random_votes_of_a_batch_are_those_of_each_sample() -> None:
    """Chunks, bins of gaps and the order of samples leave no trace."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(300, 6)) * generator.exponential(8.0, (300, 1))
    stds = generator.uniform(0.5, 2.0, 300)
    together = exact_votes(logits, stds)
    for sample in range(0, 300, 30):
        gaps = np.sort((logits[sample].max() - logits[sample]) / stds[sample])[1:]
        if gaps[0] < 40.0:
            truth = brute_force(gaps)
            assert together.log_p_a[sample] == pytest.approx(truth[0], abs=1e-11)
            assert together.log_rest[sample] == pytest.approx(truth[1], abs=1e-11)
            assert together.log_p_b[sample] == pytest.approx(truth[2], abs=1e-11)
    np.testing.assert_array_equal(together.first, logits.argmax(axis=1))


def test_sampling_agrees() -> None:
    generator = np.random.default_rng(1)
    weights, x, sigma = generator.normal(size=(5, 4)), generator.normal(size=5), 0.6
    votes = exact_votes([x @ weights], [sigma * np.linalg.norm(x)])
    noisy = weights + sigma * generator.normal(size=(100_000, 5, 4))
    shares = np.bincount((x @ noisy).argmax(axis=1), minlength=4) / 100_000
    order = np.argsort(x @ weights)
    for log_p, share in ((votes.log_p_a, shares[order[-1]]), (votes.log_p_b, shares[order[-2]])):
        p = float(np.exp(log_p[0]))
        assert abs(share - p) <= 4.0 * np.sqrt(p * (1.0 - p) / 100_000)


@settings(max_examples=60, deadline=None)
@given(logits=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12), std=st.floats(1e-3, 1e3))
def test_probabilities_add_up(logits: list[float], std: float) -> None:
    votes = exact_votes([logits], [std])
    p_a, rest, p_b = (float(np.exp(value[0])) for value in votes[1:])
    assert p_a + rest == pytest.approx(1.0, abs=1e-11)
    assert 0.0 <= p_b <= rest * (1 + 3e-12)
    assert p_b >= rest / (len(logits) - 1) * (1 - 1e-9) or votes.log_rest[0] < -300.0
    assert not np.isnan(gaussian_threshold_of_logs(*votes[1:])).any()


@settings(max_examples=60, deadline=None)
@given(logits=st.lists(st.floats(-30.0, 30.0), min_size=2, max_size=12))
def test_smoothing_never_certifies_more_than_the_margin(logits: list[float]) -> None:
    """Sigma mu* is at most the margin over sqrt 2 ||x||, and equal to it for two classes."""
    margin = float(margin_threshold(logits, 1.0))
    threshold = float(gaussian_threshold_of_logs(*exact_votes([logits], [1.0])[1:])[0])
    assert threshold <= margin * (1 + 1e-9)
    two = sorted(logits)[-2:]
    of_two = gaussian_threshold_of_logs(*exact_votes([two], [1.0])[1:])[0]
    assert of_two == pytest.approx(margin, rel=1e-9, abs=1e-11)


@given(gap=st.floats(0.0, 39.0), more=st.floats(0.01, 20.0))
@settings(max_examples=40, deadline=None)
def test_the_threshold_grows_with_the_gap(gap: float, more: float) -> None:
    logits = [[0.0, -gap, -gap - 1.0], [0.0, -gap - more, -gap - 1.0 - more]]
    smaller, larger = gaussian_threshold_of_logs(*exact_votes(logits, [1.0, 1.0])[1:])
    assert larger > smaller


def test_beyond_large_gaps_the_union_bound_continues_without_a_jump() -> None:
    gaps = np.array([39.999, 40.001])
    votes = exact_votes(np.stack([np.zeros(2), -gaps, -gaps - 5.0], axis=1), np.ones(2))
    thresholds = gaussian_threshold_of_logs(*votes[1:])
    np.testing.assert_allclose(thresholds, gaps / np.sqrt(2.0), rtol=1e-9)


def test_the_union_bound_is_a_bound() -> None:
    """At a gap that both can compute: three classes close together behind the winner."""
    gaps = np.array([40.01, 40.02, 40.03])
    votes, truth = exact_votes([[0.0, *-gaps]], [1.0]), brute_force(gaps)
    assert votes.log_rest[0] >= truth[1]
    assert votes.log_p_b[0] >= truth[2]
    assert votes.log_rest[0] == pytest.approx(truth[1], rel=1e-3)


def test_without_noise_the_winner_takes_all_and_a_tie_stays_one() -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        votes = exact_votes([[1.0, 0.0, 0.5], [1.0, 1.0, 0.0], [1e300, -1e300, 0.0]], [0.0, 0.0, 1e-300])
    assert votes.log_p_a.tolist()[::2] == [0.0, 0.0]
    assert votes.log_p_b.tolist()[::2] == [-np.inf, -np.inf]
    assert np.exp(votes.log_p_a[1]) == pytest.approx(0.5)
    assert gaussian_threshold_of_logs(*votes[1:]).tolist() == [np.inf, 0.0, np.inf]


def test_no_samples_are_no_problem() -> None:
    assert exact_votes(np.empty((0, 3)), np.empty(0)).log_p_a.shape == (0,)


@pytest.mark.parametrize("logits", [[[1.0, np.nan]], [[np.inf, 0.0]], [[1.0]]])
def test_logits_that_are_no_votes_are_refused(logits: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="finite logits of two or more classes"):
        exact_votes(logits, [1.0])


def test_more_digits_than_float64_has_are_refused() -> None:
    with pytest.raises(ValueError, match="between 1e-13 and 1e-3, found 1e-16"):
        exact_votes([[1.0, 0.0]], [1.0], relative_error=1e-16)
