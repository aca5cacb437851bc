"""Composed defences: any stages before any rule, and the weights that reach the model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from crfl_aggregators.bulyan import Bulyan
from crfl_aggregators.fedavg import FedAvg
from crfl_aggregators.filters import NormFilter
from crfl_aggregators.foolsgold import FoolsGold
from crfl_aggregators.krum import Krum
from crfl_aggregators.mixing import Bucketing
from crfl_aggregators.trimmed_mean import Median
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from crfl_core.extend import Aggregator, ClientUpdates, Stage
from crfl_core.testing.aggregation_steps import matrix_of
from crfl_core.training.aggregation_chain import apply_stage, run_chain
from tests.aggregators.support import (
    RULES,
    STAGES,
    aggregate_of,
    all_kinds_of_updates,
    gaussian,
    permuted,
    rebuilt,
    updates_of,
)

chains = st.lists(st.sampled_from(sorted(STAGES)), max_size=3).map(lambda names: [STAGES[name] for name in names])
rules = st.sampled_from(sorted(RULES)).map(RULES.__getitem__)


@settings(deadline=None, max_examples=300)
@given(stages=chains, rule=rules, updates=all_kinds_of_updates(), retention=st.sampled_from([1.0, 0.7]))
def test_weights_and_offset_rebuild_the_aggregate_of_every_chain(
    stages: list[Stage], rule: Aggregator, updates: ClientUpdates, retention: float
) -> None:
    updates = updates_of(updates.values, retention=np.full(len(updates.values), retention))
    result = run_chain([*stages, rule], updates, {})
    aggregate = result.reported
    assert aggregate is not None
    scale = 1.0 + float(updates.values.abs().max())
    torch.testing.assert_close(rebuilt(aggregate, updates.values), aggregate.update, rtol=0, atol=1e-10 * scale)
    assert torch.equal(result.update, aggregate.update)
    assert torch.equal(result.weights, aggregate.weights.double())
    assert result.weights.shape == (len(updates.values),)
    assert (result.weights <= result.weight_bound + 1e-12).all()
    if aggregate.full_weights is not None:
        assert (aggregate.full_weights().amax(1) <= aggregate.weights + 1e-12).all()


@settings(deadline=None, max_examples=100)
@given(stages=chains, rule=rules, seed=st.integers(0, 999), clients=st.integers(1, 9))
def test_permuting_clients_permutes_the_weights_of_every_chain(
    stages: list[Stage], rule: Aggregator, seed: int, clients: int
) -> None:
    # Mixtures that exchange one neighbour differ by the same vector, so values of four of them can lie equally far from
    # their median without being equal. Whether Bulyan sees that they tie is up to rounding: to the order of the sums.
    assume(not (STAGES["nearest-neighbour-mixing"] in stages and isinstance(rule, Bulyan)))
    updates = updates_of(gaussian(clients, 5, seed))
    order = np.random.default_rng(seed).permutation(clients)
    before, after = (aggregate_of([*stages, rule], given) for given in (updates, permuted(updates, order)))
    torch.testing.assert_close(after.update, before.update, rtol=0, atol=1e-3)
    torch.testing.assert_close(after.weights, before.weights[torch.from_numpy(order)], rtol=0, atol=1e-3)


@settings(deadline=None, max_examples=60)
@given(stages=chains, rule=rules, seed=st.integers(0, 999))
def test_a_chain_changes_nothing_that_was_submitted(stages: list[Stage], rule: Aggregator, seed: int) -> None:
    updates = updates_of(3 * gaussian(8, 5, seed))
    values = updates.values.clone()
    aggregate_of([*stages, rule], updates).update.add_(1.0)
    assert torch.equal(updates.values, values)


@settings(deadline=None, max_examples=60)
@given(stages=chains, rule=rules, clients=st.integers(1, 9))
def test_zero_updates_leave_the_model_where_it_is(stages: list[Stage], rule: Aggregator, clients: int) -> None:
    quiet = [stage for stage in stages if stage is not STAGES["weak-noise"]]
    aggregate = aggregate_of([*quiet, rule], updates_of(np.zeros((clients, 4))))
    assert not aggregate.update.any()
    assert torch.isfinite(aggregate.weights).all()


def test_the_weights_of_a_bucketed_krum_are_those_of_the_winning_bucket() -> None:
    values = gaussian(10, 5)
    aggregate = aggregate_of([Bucketing(size=2), Krum(f=1)], updates_of(values))
    winners = np.flatnonzero(aggregate.weights)
    assert aggregate.weights[winners].tolist() == [0.5, 0.5]
    np.testing.assert_allclose(aggregate.update, values[winners].mean(0))


def test_buckets_are_drawn_anew_every_round_and_the_same_for_equal_seeds() -> None:
    stage, values = Bucketing(size=3), gaussian(10, 5)
    one, again, other = (matrix_of(apply_stage(stage, updates_of(values, number=number), {})) for number in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert one.count_nonzero(dim=1).tolist() == [3, 3, 3, 1]


def test_a_rule_behind_a_filter_still_knows_who_is_who() -> None:
    """Histories and sample counts belong to the clients that are left, not to their row numbers."""
    values = gaussian(4, 6)
    values[1] *= 100
    updates = updates_of(values, ids=np.asarray([3, 5, 8, 9]), samples=np.asarray([10, 20, 30, 40]))
    result = run_chain([NormFilter(f=1), FoolsGold()], updates, {})
    assert result.states["aggregation.1"]["ids"].tolist() == [3, 8, 9]
    weighted = run_chain([NormFilter(f=1), FedAvg()], updates, {}).weights
    assert weighted.tolist() == pytest.approx([10 / 80, 0.0, 30 / 80, 40 / 80])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coordinate_wise_weights_go_through_stages(dtype: torch.dtype) -> None:
    values = torch.from_numpy(gaussian(9, 40)).to(dtype)
    chain = [STAGES["update-cap"], STAGES["nearest-neighbour-mixing"], Median()]
    aggregate = aggregate_of(chain, updates_of(values))
    assert aggregate.full_weights is not None
    full = aggregate.full_weights()
    assert full.shape == values.shape
    torch.testing.assert_close((full * values).sum(0), aggregate.update, rtol=0, atol=1e-5)
