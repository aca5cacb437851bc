"""FLAME against an implementation of its own: what HDBSCAN finds here is a component of a graph of near directions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from crfl_aggregators.flame import Flame, majority_cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.cluster import HDBSCAN

from tests.aggregators.support import Array, gaussian, updates_of


def cosine_distances(values: Array) -> Array:
    """`1 - cos` of all pairs, one at a time."""
    return np.array([[1 - float(a @ b) / float(np.sqrt(a @ a) * np.sqrt(b @ b)) for b in values] for a in values])


def nearest_majority(distances: Array) -> NDArray[np.bool_]:
    """The first component with more than half of all clients, as edges are added by rising distance.

    Clusters of more than half cannot split in two, so HDBSCAN knows one cluster, from which clients fall away one by
    one. Those who are left when it becomes too small are its core, and single linkage has joined them last.
    """
    clients = len(distances)
    for limit in np.unique(distances[~np.eye(clients, dtype=bool)]):
        component = np.arange(clients)
        for a, b in zip(*np.nonzero(distances <= limit), strict=True):
            component[component == component[a]] = component[b]
        sizes = np.bincount(component, minlength=clients)
        if sizes.max() > clients // 2:
            return np.asarray(component == sizes.argmax())
    raise AssertionError


def flame(values: Array, noise: Array) -> tuple[Array, Array]:
    """Algorithm 1 of the paper (Nguyen et al., 2022), with the noise of the round given; the update and the weights."""
    lengths = np.array([float(np.sqrt(update @ update)) for update in values])
    ordered = np.sort(lengths)
    median = float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    admitted = nearest_majority(cosine_distances(values).round(12))
    weights = np.where(admitted, np.minimum(1.0, median / lengths), 0.0) / admitted.sum()
    return weights @ values + 0.01 * median * noise, weights


@pytest.mark.parametrize("clients", [2, 3, 12, 13, 30])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_agrees_with_the_paper(clients: int, seed: int, dtype: torch.dtype, tolerance: float) -> None:
    values = (gaussian(clients, 20, seed) + gaussian(1, 20, seed + 9)) * np.exp(gaussian(clients, 1, seed + 50))
    updates = updates_of(torch.from_numpy(values).to(dtype), number=seed + 1)
    drawn = updates.round.streams.generator("aggregation/flame", round_number=seed + 1).standard_normal(20)
    expected, weights = flame(values, drawn)
    found = Flame(noise=0.01).aggregate(updates, {})
    np.testing.assert_allclose(found.update, expected, atol=tolerance * np.abs(values).max())
    np.testing.assert_allclose(found.weights, weights, atol=tolerance)
    assert found.offset is not None
    assert found.notes["admitted"] == (weights > 0).sum()


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 10**6), clients=st.integers(2, 15), steps=st.integers(1, 12))
def test_the_cluster_is_the_first_majority_of_single_linkage(seed: int, clients: int, steps: int) -> None:
    """With many ties as well: distances are multiples of one step."""
    drawn = np.random.default_rng(seed).integers(0, steps + 1, (clients, clients)) / steps
    distances = np.triu(drawn, 1) + np.triu(drawn, 1).T
    np.testing.assert_array_equal(majority_cluster(1.0 - distances), nearest_majority(distances))


@pytest.mark.parametrize("clients", [2, 5, 40, 101])
@pytest.mark.parametrize("seed", range(3))
def test_the_cluster_is_that_of_hdbscan(clients: int, seed: int) -> None:
    values = gaussian(clients, 6, seed) + 2.0 * gaussian(2, 6, seed + 9)[np.arange(clients) % 3 // 2]
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    cosines = unit @ unit.T
    distances = (1.0 - np.minimum(cosines, cosines.T)).round(12)
    np.fill_diagonal(distances, 0.0)
    clusters = HDBSCAN(
        min_cluster_size=clients // 2 + 1, min_samples=1, metric="precomputed", allow_single_cluster=True, copy=True
    )
    np.testing.assert_array_equal(majority_cluster(cosines), clusters.fit(distances).labels_ >= 0)


def test_a_minority_that_pulls_elsewhere_is_left_out_and_a_long_update_is_clipped() -> None:
    values = 0.1 * gaussian(11, 30) + 1.0
    values[:4] = -values[:4]
    values[10] *= 50.0
    found = Flame().aggregate(updates_of(values), {})
    assert not found.weights[:4].any()
    lengths = np.linalg.norm(values, axis=1)
    assert float(found.weights[10]) * lengths[10] <= np.median(lengths) / found.notes["admitted"] * (1 + 1e-12)


def test_the_noise_is_in_no_clients_weight_and_follows_the_median_norm() -> None:
    small, large = (Flame(noise=0.1).aggregate(updates_of(scale * gaussian(9, 4000)), {}) for scale in (1.0, 3.0))
    assert small.offset is not None
    assert large.offset is not None
    torch.testing.assert_close(large.offset, 3.0 * small.offset)
    assert float(small.offset.std()) == pytest.approx(0.1 * small.notes["median_norm"], rel=0.1)
    assert Flame(noise=0.0).aggregate(updates_of(gaussian(9, 5)), {}).offset is None
