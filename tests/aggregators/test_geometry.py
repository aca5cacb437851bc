"""Norms, distances and angles: right, whatever the blocks they are computed in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from crfl_aggregators import dnc, geometry, residual_reweighting
from crfl_aggregators.coordinates import sort_columns
from crfl_aggregators.filters import rank_clients
from hypothesis import given, settings
from hypothesis import strategies as st

from crfl_core.extend import Aggregator, Stage
from crfl_core.plugin_api.aggregator import AggregationStep
from crfl_core.training.aggregation_chain import apply_stage
from tests.aggregators.support import RULES, STAGES, gaussian, updates_of

steps = pytest.mark.parametrize("step", [*RULES.values(), *STAGES.values()], ids=[*RULES, *STAGES])


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three columns, and of one or two rows of what is known of all pairs."""
    monkeypatch.setattr(geometry, "NUMBERS_PER_BLOCK", 27)
    monkeypatch.setattr(residual_reweighting, "NUMBERS_PER_BLOCK", 27)
    for name, few in {
        "MIN_BLOCK_COLUMNS": 3,
        "NORM_PIECE_COLUMNS": 3,
        "TILE_ROWS": 2,
        "PRODUCTS_PER_BLOCK": 18,
    }.items():
        monkeypatch.setattr(geometry, name, few)
    monkeypatch.setattr(dnc, "MIN_BLOCK_COLUMNS", 4)


def play(step: AggregationStep) -> torch.Tensor:
    """The answer for nine clients with 50 parameters."""
    updates = updates_of(gaussian(9, 50), start=torch.from_numpy(gaussian(1, 50, seed=1)[0]), retention=np.full(9, 0.9))
    if isinstance(step, Stage):
        return apply_stage(step, updates, {}).values
    assert isinstance(step, Aggregator)
    answer = step.aggregate(updates, {})
    return torch.cat([answer.update, answer.weights])


@steps
def test_the_width_of_blocks_does_not_matter(step: AggregationStep, request: pytest.FixtureRequest) -> None:
    whole = play(step)
    request.getfixturevalue("narrow")
    torch.testing.assert_close(play(step), whole, rtol=0, atol=1e-7)


@pytest.mark.usefixtures("narrow")
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 999), clients=st.integers(1, 9), size=st.integers(1, 20))
def test_norms_distances_and_cosines_are_what_they_say(seed: int, clients: int, size: int) -> None:
    values, shift, shares = gaussian(clients, size, seed), gaussian(1, size, seed + 1)[0], gaussian(1, clients, seed)[0]
    tensor = torch.from_numpy(values)
    np.testing.assert_allclose(geometry.norms(tensor), np.linalg.norm(values, axis=1))
    shifted = geometry.norms(tensor, torch.from_numpy(shift), torch.from_numpy(shares))
    np.testing.assert_allclose(shifted, np.linalg.norm(values + np.outer(shares, shift), axis=1))
    distances = np.linalg.norm(values[:, None] - values, axis=-1) ** 2
    for given_values in (tensor, tensor.float()):
        found = geometry.distances_from_products(geometry.central_products(given_values))
        np.testing.assert_allclose(found, distances, rtol=1e-5, atol=1e-6)
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    np.testing.assert_allclose(geometry.cosines(tensor), unit @ unit.T, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_updates_have_distance_zero_and_no_others(dtype: torch.dtype) -> None:
    values = torch.from_numpy(15 * gaussian(1, 2000) + 1e-3 * gaussian(6, 2000, seed=1)).to(dtype)
    values[4] = values[1]
    distances = geometry.distances_from_products(geometry.central_products(values))
    assert set(zip(*np.nonzero(distances == 0), strict=True)) == {(i, i) for i in range(6)} | {(1, 4), (4, 1)}


def test_distances_of_mixtures_are_those_of_the_mixed_updates() -> None:
    values, mixing = gaussian(6, 40), np.kron(np.eye(3), np.full((1, 2), 0.5))
    found = geometry.distances_from_products(geometry.central_products(torch.from_numpy(values), mixing))
    expected = geometry.distances_from_products(geometry.central_products(torch.from_numpy(mixing @ values)))
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 4), (5, 1), (6, 7)])
def test_columns_are_sorted_in_a_copy(shape: tuple[int, int]) -> None:
    block = torch.from_numpy(gaussian(*shape))
    before = block.clone()
    assert torch.equal(sort_columns(block), before.T.sort(dim=1).values)
    assert torch.equal(block, before)


def test_scores_that_differ_by_rounding_are_ranked_by_id() -> None:
    scores = np.asarray([0.3, 0.1 + 0.2, 0.1, 0.0, 1e20])
    assert rank_clients(scores, np.asarray([5, 1, 7, 8, 9])).tolist() == [3, 2, 1, 0, 4]
