"""FoolsGold: similarity over all rounds, kept per client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from crfl_aggregators.foolsgold import FoolsGold, client_trust
from crfl_aggregators.geometry import cosines
from hypothesis import given, settings
from hypothesis import strategies as st

from crfl_core.extend import State
from tests.aggregators import oracles
from tests.aggregators.support import gaussian, updates_of


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), clients=st.integers(2, 10), confidence=st.sampled_from([0.5, 1.0, 2.0]))
def test_trust_agrees_with_the_papers_algorithm(seed: int, clients: int, confidence: float) -> None:
    histories = gaussian(clients, 3, seed)
    found = client_trust(cosines(torch.from_numpy(histories)), confidence)
    np.testing.assert_allclose(found, oracles.foolsgold_trust(histories, confidence), atol=1e-9)


def test_sybils_lose_their_weight_and_honest_clients_keep_theirs() -> None:
    values = gaussian(10, 200)
    values[:4] = gaussian(1, 200, seed=5) + 0.01 * gaussian(4, 200, seed=6)
    weights = FoolsGold().aggregate(updates_of(values), {}).weights.numpy()
    assert weights[:4].max() == 0.0
    np.testing.assert_allclose(weights[4:], 1 / 10)


def test_it_compares_sums_over_all_rounds() -> None:
    """Two clients that differ in one round are told apart for good, or not at all without a memory."""
    same = np.asarray([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    apart = np.asarray([[0.0, 9.0, 0.0], [0.0, -9.0, 0.0], [0.0, 0.0, 1.0]])
    state: State = {}
    for values in (apart, same):
        found = FoolsGold().aggregate(updates_of(values), state)
        state = found.state
    assert found.weights.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert FoolsGold(memory=False).aggregate(updates_of(same), {}).weights.tolist() == pytest.approx([0.0, 0.0, 1 / 3])


def test_histories_follow_clients_through_partial_participation() -> None:
    """Client 7 takes part in rounds 1 and 3, client 2 in 1 and 2, client 5 in 2 and 3."""
    state: State = {}
    for number, ids in enumerate(([2, 7], [2, 5], [5, 7]), start=1):
        values = np.full((2, 3), 10.0**number)
        state = FoolsGold().aggregate(updates_of(values, number=number, ids=np.asarray(ids)), state).state
    assert state["ids"].tolist() == [2, 5, 7]
    assert state["history"][:, 0].tolist() == [110.0, 1100.0, 1010.0]


def test_the_order_of_clients_does_not_mix_up_their_histories() -> None:
    values = gaussian(3, 4)
    first = FoolsGold().aggregate(updates_of(values, ids=np.asarray([4, 1, 9])), {}).state
    np.testing.assert_allclose(first["history"], values[[1, 0, 2]])
