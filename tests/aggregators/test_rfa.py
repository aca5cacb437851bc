"""The geometric median: what the ledger says about its quality is true."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from crfl_aggregators.rfa import Rfa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.aggregators import oracles
from tests.aggregators.support import Array, gaussian, updates_of


def objective(values: Array, shares: Array, point: Array) -> float:
    """What the geometric median minimises."""
    return float(sum(share * np.linalg.norm(row - point) for share, row in zip(shares, values, strict=True)))


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), clients=st.integers(2, 12), iterations=st.integers(1, 12))
def test_the_reported_gap_is_never_smaller_than_what_was_missed(seed: int, clients: int, iterations: int) -> None:
    values = gaussian(clients, 4, seed)
    values[0] *= 10.0 ** (seed % 4)
    shares = np.full(clients, 1 / clients)
    found = Rfa(weighting="uniform", iterations=iterations, tolerance=0.0).aggregate(updates_of(values), {})
    reached = objective(values, shares, found.update.numpy())
    best = min(objective(values, shares, point) for point in (oracles.geometric_median(values, shares), *values))
    assert found.notes["iterations"] == iterations or found.notes["optimality_gap"] == 0.0
    assert found.notes["objective"] == pytest.approx(reached, rel=1e-9)
    assert reached - best <= found.notes["optimality_gap"] + 1e-9 * reached


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 999), clients=st.integers(3, 30))
def test_it_stops_as_soon_as_the_gap_is_small_enough(seed: int, clients: int) -> None:
    values = gaussian(clients, 20, seed)
    farthest = max(float(np.linalg.norm(row - other)) for row in values for other in values)
    loose, tight = (
        Rfa(tolerance=tolerance, iterations=10_000).aggregate(updates_of(values), {}).notes
        for tolerance in (1e-2, 1e-8)
    )
    assert loose["iterations"] <= tight["iterations"] < 10_000
    assert loose["optimality_gap"] <= 1e-2 * farthest
    assert tight["optimality_gap"] <= 1e-8 * farthest


@pytest.mark.parametrize("size", [0.05, 1e-6])
def test_small_updates_do_not_collapse_to_the_mean(size: float) -> None:
    """With a smoothing in absolute units, updates smaller than it would all be averaged, outlier and all."""
    values = size * gaussian(11, 30)
    values[0] *= 50
    found = Rfa(weighting="uniform").aggregate(updates_of(values), {}).update.numpy()
    mean = values.mean(0)
    assert np.linalg.norm(found - values[1:].mean(0)) < 0.2 * np.linalg.norm(mean - values[1:].mean(0))


@pytest.mark.parametrize("share", [0.1, 0.3, 0.45])
def test_drift_stays_within_the_breakdown_bound(share: float) -> None:
    """Honest updates of norm at most U move the exact median by at most U (1 + (1 - a) / sqrt(1 - 2 a))."""
    clients = 100
    attackers = int(share * clients)
    honest = gaussian(clients, 5)
    honest /= np.linalg.norm(honest, axis=1, keepdims=True)
    attacked = honest.copy()
    attacked[:attackers] = 1e6 * gaussian(1, 5, seed=1)
    rule = Rfa(weighting="uniform", iterations=2000)
    clean, moved = (rule.aggregate(updates_of(values), {}).update for values in (honest, attacked))
    bound = 1 + (1 - share) / np.sqrt(1 - 2 * share)
    assert float((clean - moved).norm()) <= bound * (1 + 1e-3)


def test_weights_are_those_of_the_last_iteration() -> None:
    """One iteration from the mean: the weights are inverse to the distances from it."""
    values = gaussian(7, 3)
    found = Rfa(weighting="uniform", iterations=1, tolerance=0.0).aggregate(updates_of(values), {})
    pull = 1 / np.linalg.norm(values - values.mean(0), axis=1)
    np.testing.assert_allclose(found.weights, pull / pull.sum(), rtol=1e-9)


def test_more_samples_pull_harder() -> None:
    values = torch.tensor([[0.0], [1.0], [1.0], [0.0]])
    found = Rfa().aggregate(updates_of(values, samples=np.asarray([10, 1, 1, 10])), {})
    assert float(found.update) == pytest.approx(0.0, abs=1e-5)
