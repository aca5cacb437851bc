"""Federated averaging: weights from sample counts alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from crfl_aggregators.fedavg import FedAvg
from hypothesis import given, settings
from hypothesis import strategies as st

from crfl_core import Clients, ClientUpdates, Layout, Round, Streams
from crfl_core.federation.chain import dependence


def participants(samples: list[int]) -> Clients:
    """Clients with so many samples, who do nothing else."""
    zeros = np.zeros(len(samples))
    ones = np.ones(len(samples), np.int64)
    return Clients(
        ids=np.arange(len(samples)),
        samples=np.asarray(samples, np.int64),
        learning_rate=zeros,
        steps=ones,
        batch_size=ones,
        last_batch=ones,
        weight_decay=zeros,
        retention=zeros,
        update_bound=zeros,
        attacking=zeros > 0,
    )


def updates_of(samples: list[int], size: int = 6, seed: int = 0) -> ClientUpdates:
    """Gaussian updates of such clients, in float64."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(len(samples), size, generator=generator, dtype=torch.float64)
    start = torch.zeros(size, dtype=torch.float64)
    return ClientUpdates(values, Round(1, 1, start, participants(samples), Layout((("w", (size,)),)), Streams(0)))


samples_of_clients = st.lists(st.integers(1, 500), min_size=1, max_size=12)


@settings(deadline=None, max_examples=30)
@given(samples=samples_of_clients)
def test_weights_are_shares_of_the_samples(samples: list[int]) -> None:
    weights = FedAvg().weights(participants(samples))
    np.testing.assert_allclose(weights, np.asarray(samples) / sum(samples), rtol=1e-15)
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-12)


@settings(deadline=None, max_examples=20)
@given(samples=samples_of_clients)
def test_uniform_weighting_forgets_the_samples(samples: list[int]) -> None:
    weights = FedAvg(weighting="uniform").weights(participants(samples))
    np.testing.assert_allclose(weights, 1 / len(samples), rtol=1e-15)


@settings(deadline=None, max_examples=30)
@given(samples=samples_of_clients, weighting=st.sampled_from(["samples", "uniform"]))
def test_the_aggregate_is_the_weighted_sum_of_the_updates(samples: list[int], weighting: str) -> None:
    updates = updates_of(samples)
    aggregate = FedAvg.model_validate({"weighting": weighting}).aggregate(updates, {})
    by_hand = sum(float(p) * row for p, row in zip(aggregate.weights, updates.values, strict=True))
    torch.testing.assert_close(aggregate.update, by_hand)


def test_a_single_client_is_followed_exactly() -> None:
    updates = updates_of([17])
    torch.testing.assert_close(FedAvg().aggregate(updates, {}).update, updates.values[0], rtol=0, atol=0)


def test_weights_do_not_move_with_the_updates() -> None:
    weights = [FedAvg().aggregate(updates_of([3, 4, 5], seed=seed), {}).weights for seed in (0, 1)]
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    assert dependence((FedAvg(),)) == "fixed"
