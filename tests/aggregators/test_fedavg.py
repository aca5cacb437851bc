"""Federated averaging: weights from sample counts alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from crfl_aggregators.fedavg import FedAvg
from hypothesis import given, settings
from hypothesis import strategies as st

from crfl_core.plugin_api.aggregator import chain_dependence
from tests.oracle import participants, updates_of

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
    assert chain_dependence((FedAvg(),), participants([3, 4, 5])) == "fixed"
