"""What every rule and every stage promises, whatever is submitted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from crfl_core.extend import Aggregator, ClientUpdates, LinearAggregator, Registry, Stage
from crfl_core.plugin_api.aggregator import AggregationStep
from crfl_core.testing.aggregation_steps import matrix_of
from crfl_core.training.aggregation_chain import apply_stage
from tests.aggregators.support import (
    RULES,
    STAGES,
    all_kinds_of_updates,
    gaussian,
    permuted,
    rebuilt,
    updates_of,
)

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
every_stage = pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
some = settings(deadline=None, max_examples=25)


def test_the_laws_are_tried_on_every_aggregator_of_this_distribution() -> None:
    registry = Registry()
    classes = {type(step) for step in (*RULES.values(), *STAGES.values())}
    installed = {name: registry.load("aggregator", name) for name in (*RULES, *STAGES)}
    assert set(installed.values()) == classes
    ours = {found.name for found in registry.listing() if found.kind == "aggregator" and found.distribution == "crfl"}
    signed = {found for found in ours if getattr(registry.load("aggregator", found), "signed_weights", False)}
    assert ours - signed == set(installed)  # those with signed weights keep other laws, in test_weighted_rules.py


@pytest.mark.parametrize("step", [*RULES.values(), *STAGES.values()], ids=[*RULES, *STAGES])
def test_options_have_defaults_and_descriptions_and_the_class_cites_or_explains(step: AggregationStep) -> None:
    assert type(step)() is not None
    assert all(field.description for field in type(step).model_fields.values())
    assert type(step).__doc__


@every_rule
@some
@given(updates=all_kinds_of_updates())
def test_weights_and_offset_rebuild_the_aggregate(rule: Aggregator, updates: ClientUpdates) -> None:
    aggregate = rule.aggregate(updates, {})
    scale = 1.0 + float(updates.values.abs().max())
    torch.testing.assert_close(rebuilt(aggregate, updates.values), aggregate.update, rtol=0, atol=1e-12 * scale)
    assert torch.isfinite(aggregate.weights).all()
    assert (aggregate.weights >= 0).all()
    assert float(aggregate.weights.max()) <= 1.0 + 1e-12 or rule is RULES["fltrust"]


@every_stage
@some
@given(updates=all_kinds_of_updates())
def test_mixing_and_offset_rebuild_what_a_stage_hands_on(stage: Stage, updates: ClientUpdates) -> None:
    staged = apply_stage(stage, updates, {})
    matrix = matrix_of(staged)
    scale = 1.0 + float(updates.values.abs().max())
    expected = matrix @ updates.values + (0.0 if staged.offset is None else staged.offset)
    torch.testing.assert_close(staged.values, expected, rtol=0, atol=1e-12 * scale)
    assert len(staged.values) >= 1
    if stage.depends == "own":
        assert torch.equal(matrix, torch.diag(matrix.diagonal()))
        assert ((matrix >= 0) & (matrix <= 1)).all()
    else:
        torch.testing.assert_close(matrix.sum(1), torch.ones(len(staged.values), dtype=torch.float64))


@every_rule
@some
@given(updates=all_kinds_of_updates(), seed=st.integers(0, 99))
def test_permuting_clients_permutes_the_weights(rule: Aggregator, updates: ClientUpdates, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(updates.values))
    before, after = rule.aggregate(updates, {}), rule.aggregate(permuted(updates, order), {})
    scale = 1.0 + float(updates.values.abs().max())
    solved = 1e-3 if "optimality_gap" in before.notes else 1e-9  # a minimum is only found up to a tolerance
    torch.testing.assert_close(after.update, before.update, rtol=0, atol=solved * scale)
    torch.testing.assert_close(after.weights, before.weights[torch.from_numpy(order)], rtol=0, atol=solved)


@every_stage
@some
@given(updates=all_kinds_of_updates(), seed=st.integers(0, 99))
def test_permuting_clients_permutes_what_a_stage_mixes(stage: Stage, updates: ClientUpdates, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(updates.values))
    before, after = (matrix_of(apply_stage(stage, given, {})) for given in (updates, permuted(updates, order)))
    back = torch.from_numpy(np.argsort(order))
    torch.testing.assert_close(in_order(after[:, back]), in_order(before), rtol=0, atol=1e-9)


def in_order(rows: Tensor) -> Tensor:
    """The rows in a canonical order."""
    return rows[torch.from_numpy(np.lexsort(rows.numpy().T[::-1].round(9)))]


@pytest.mark.parametrize("step", [*RULES.values(), *STAGES.values()], ids=[*RULES, *STAGES])
@pytest.mark.parametrize(("clients", "size"), [(7, 5), (1, 5), (7, 1), (1, 1)])
def test_inputs_are_neither_changed_nor_aliased(step: AggregationStep, clients: int, size: int) -> None:
    updates = updates_of(3 * gaussian(clients, size))
    values, start = updates.values.clone(), updates.round.start.clone()
    if isinstance(step, Stage):
        staged = apply_stage(step, updates, {})
        staged.values.add_(1.0)
        state = staged.state
    else:
        assert isinstance(step, Aggregator)
        aggregate = step.aggregate(updates, {})
        aggregate.update.add_(1.0)
        state = aggregate.state
    for tensor in state.values():
        tensor.add_(1)
    assert torch.equal(updates.values, values)
    assert torch.equal(updates.round.start, start)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", [*RULES.values(), *STAGES.values()], ids=[*RULES, *STAGES])
def test_results_have_the_precision_of_the_updates(step: AggregationStep, dtype: torch.dtype) -> None:
    updates = updates_of(torch.from_numpy(gaussian(7, 5)).to(dtype))
    if isinstance(step, Stage):
        staged = apply_stage(step, updates, {})
        assert (staged.values.dtype, staged.mixing.dtype) == (dtype, dtype)
    else:
        assert isinstance(step, Aggregator)
        aggregate = step.aggregate(updates, {})
        assert aggregate.update.dtype == dtype
        assert aggregate.full_weights is None or aggregate.full_weights().dtype == dtype


@every_rule
@pytest.mark.parametrize("clients", [1, 2, 3, 8])
def test_zero_updates_aggregate_to_zero(rule: Aggregator, clients: int) -> None:
    aggregate = rule.aggregate(updates_of(np.zeros((clients, 4))), {})
    assert not aggregate.update.any()
    assert torch.isfinite(aggregate.weights).all()


@every_rule
@pytest.mark.parametrize("clients", [1, 2, 3, 8])
def test_identical_updates_aggregate_to_themselves(rule: Aggregator, clients: int) -> None:
    """Except for FoolsGold, to which clients that all pull in one direction are copies of one attacker."""
    if rule is RULES["fltrust"]:
        pytest.skip("its updates are as long as the server's")
    if rule is RULES["sign-majority"]:
        pytest.skip("only the signs of updates count")
    update = np.asarray([0.5, -1.0, 0.0, 1.5])
    aggregate = rule.aggregate(updates_of(np.tile(update, (clients, 1))), {})
    without_weights = rule is RULES["foolsgold"] and clients > 1
    np.testing.assert_allclose(aggregate.update, 0.0 if without_weights else update, atol=1e-12)
    assert (
        float(aggregate.weights.sum()) == pytest.approx(0.0 if without_weights else 1.0)
        or aggregate.full_weights is not None
    )


@every_stage
@pytest.mark.parametrize("clients", [1, 2, 3, 8])
@pytest.mark.parametrize("update", [[0.0, 0.0, 0.0], [0.5, -1.0, 1.5]])
def test_stages_hand_on_zero_and_identical_updates_as_such(stage: Stage, update: list[float], clients: int) -> None:
    staged = apply_stage(stage, updates_of(np.tile(update, (clients, 1))), {})
    plain = staged.values if staged.offset is None else staged.values - staged.offset
    np.testing.assert_allclose(plain, np.tile(update, (len(staged.values), 1)), atol=1e-12)
    torch.testing.assert_close(matrix_of(staged).sum(1), torch.ones(len(staged.values), dtype=torch.float64))


@every_rule
@some
@given(seed=st.integers(0, 999), clients=st.integers(1, 9))
def test_updates_of_any_size_are_treated_alike(rule: Aggregator, seed: int, clients: int) -> None:
    """No absolute constant hides in a rule: tiny updates get the weights of large ones."""
    if rule in (RULES["centered-clipping"], RULES["sign-majority"], RULES["fltrust"]):
        pytest.skip("its radius or step is absolute by definition, or the length of the server's update")
    values = gaussian(clients, 5, seed)
    large, tiny = (rule.aggregate(updates_of(scale * values), {}) for scale in (1.0, 2.0**-40))
    torch.testing.assert_close(tiny.weights, large.weights, rtol=0, atol=1e-9)
    torch.testing.assert_close(tiny.update * 2.0**40, large.update, rtol=0, atol=1e-9)


TRANSLATED = ("fedavg", "rfa", "krum", "multi-krum", "bulyan", "median", "trimmed-mean", "median-of-means")


@pytest.mark.parametrize("rule", [*TRANSLATED, "residual-reweighting"])
@some
@given(seed=st.integers(0, 999), clients=st.integers(7, 12))
def test_what_all_updates_share_moves_the_aggregate_and_no_weight(rule: str, seed: int, clients: int) -> None:
    values, shared = gaussian(clients, 5, seed), 100 * gaussian(1, 5, seed + 1)
    here, there = (RULES[rule].aggregate(updates_of(moved), {}) for moved in (values, values + shared))
    torch.testing.assert_close(there.weights, here.weights, rtol=0, atol=1e-5)
    torch.testing.assert_close(there.update, here.update + torch.from_numpy(shared[0]), rtol=0, atol=1e-5)


@every_rule
@some
@given(seed=st.integers(0, 999), clients=st.integers(5, 9))
def test_one_huge_update_does_not_carry_a_robust_rule_away(rule: Aggregator, seed: int, clients: int) -> None:
    if isinstance(rule, LinearAggregator) or rule in (RULES["foolsgold"],):
        pytest.skip("follows large updates by design")
    values = gaussian(clients, 5, seed)
    values[0] *= 1e9
    others = updates_of(values).values[1:]
    assert float(rule.aggregate(updates_of(values), {}).update.norm()) <= 10 * float(others.norm(dim=1).max())


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "bulyan"])
@some
@given(updates=all_kinds_of_updates())
def test_coordinate_wise_rules_report_each_clients_largest_weight(rule: str, updates: ClientUpdates) -> None:
    aggregate = RULES[rule].aggregate(updates, {})
    assert aggregate.full_weights is not None
    full = aggregate.full_weights()
    torch.testing.assert_close(aggregate.weights, full.amax(1), rtol=0, atol=1e-15)
    torch.testing.assert_close(full.sum(0), torch.ones(full.shape[1], dtype=torch.float64))
