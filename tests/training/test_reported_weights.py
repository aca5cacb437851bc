"""What rules and stages report about their weights is what they did, in every round and every coordinate.

Certificates count on it: nothing else says which client has moved the model by how much.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np
import pytest
import torch
from crfl_aggregators.fedavg import FedAvg
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from crfl_core.extend import (
    Aggregator,
    ClientUpdates,
    PluginFailure,
    RuleResult,
    Stage,
    StageResult,
    State,
    Tracker,
    hookimpl,
)
from crfl_core.training.aggregation_chain import run_chain
from tests.aggregators.support import updates_of
from tests.oracle import federation_of, played, tiny

MISSED = "what it reports is not what it did: update = sum_i p_i u_i + offset is missed by up to"
STAGE_MISSED = "what it reports is not what it did: values = mixing @ updates + offset is missed by up to"


def even(values: Tensor) -> Tensor:
    """The weights of a mean."""
    return torch.full((len(values),), 1 / len(values), dtype=torch.float64)


class Longest(Aggregator):
    """Follows the longest update and reports the weights of a mean."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        longest = int(updates.values.norm(dim=1).argmax())
        return RuleResult(updates.values[longest].clone(), even(updates.values))


class Modest(Aggregator):
    """A mean that reports a thousandth of its weights."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        weights = even(updates.values)
        return RuleResult(weights.to(updates.values) @ updates.values, 0.001 * weights)


class Late(Aggregator):
    """An honest mean until the third round, in which it follows the longest update."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        if updates.round.number == 3:
            return Longest().aggregate(updates, state)
        weights = even(updates.values)
        return RuleResult(weights.to(updates.values) @ updates.values, weights)


class Forgetful(Aggregator):
    """Adds something, and does not report it as an offset."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        weights = even(updates.values)
        return RuleResult(weights.to(updates.values) @ updates.values + 1e-3, weights)


class Favouring(Aggregator):
    """A mean in which client 3 has twice the weight that is reported."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        weights = even(updates.values)
        told = weights.clone()
        weights[3] *= 2
        return RuleResult(weights.to(updates.values) @ updates.values, told)


LIARS: dict[str, type[Aggregator]] = {
    "longest": Longest,
    "modest": Modest,
    "late": Late,
    "forgetful": Forgetful,
    "favouring": Favouring,
}
LOUD = tiny()["attack"] | {"rounds": [1, 2, 3, 4], "scale": 1e7}
"""An attacker whose update is ten million times as long: nothing can hide beside it."""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LIARS)
def test_a_rule_that_reports_other_weights_stops_the_run(name: str, dtype: str) -> None:
    federation = federation_of(tiny(attack="none", dtype=dtype, aggregation=[name]), LIARS)
    place = f"aggregate() ({__file__}:{LIARS[name].aggregate.__code__.co_firstlineno})"
    with pytest.raises(PluginFailure, match=f"aggregator {name!r} of .*{re.escape(place)}.*{re.escape(MISSED)}"):
        played(federation)


@pytest.mark.parametrize("name", ["longest", "modest", "favouring"])
def test_behind_stages_as_well(name: str) -> None:
    federation = federation_of(tiny(attack="none", aggregation=["update-cap", "bucketing", name]), LIARS)
    with pytest.raises(PluginFailure, match=re.escape(MISSED)):
        played(federation)


def test_an_attacker_with_a_huge_update_hides_no_lie_about_the_others() -> None:
    """Every coordinate has a tolerance of its own: what others submitted, not the longest update, says how wide it is.

    The attacker's update is zero in half of the coordinates, and 1e7 in the others.
    """
    values = np.random.default_rng(0).standard_normal((8, 6))
    values[0] = [1e7, 1e7, 1e7, 0.0, 0.0, 0.0]
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(PluginFailure, match=re.escape(MISSED)):
            run_chain([Favouring()], updates_of(torch.from_numpy(values).to(dtype)), {})


class Bending(Stage):
    """Moves one coordinate of one client by a hundredth of what it is, and reports that nothing happened."""

    coordinate: int = 3
    part: float = 0.01

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        values = updates.values.clone()
        values[2, self.coordinate] *= 1 + self.part
        return StageResult(values, torch.ones_like(values[:, 0]))


class Mixing(Stage):
    """Mixes a thousandth of each update into all others, and reports that nothing happened."""

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        values = 0.999 * updates.values + 0.001 * updates.values.mean(0)
        return StageResult(values, torch.eye(len(values), dtype=values.dtype))


@pytest.mark.parametrize("stage", [Bending(), Bending(coordinate=0, part=1e-4), Mixing()], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stage_that_reports_another_mixing_is_found_beside_a_huge_update(stage: Stage, dtype: torch.dtype) -> None:
    values = np.random.default_rng(0).standard_normal((8, 6))
    values[0] = [0.0, 1e7, 1e7, 0.0, 0.0, 0.0]
    with pytest.raises(PluginFailure, match=re.escape(STAGE_MISSED)):
        run_chain([stage, FedAvg()], updates_of(torch.from_numpy(values).to(dtype)), {})


def test_a_stage_that_lies_stops_a_run_under_attack() -> None:
    """The old tolerance, relative to the largest update, would have let a lie of this size pass."""
    federation = federation_of(tiny(attack=LOUD, aggregation=["mixing", "fedavg"]), {"mixing": Mixing})
    with pytest.raises(PluginFailure, match=f"aggregator 'mixing' of .*{re.escape(STAGE_MISSED)}"):
        played(federation)


class Answering(Tracker):
    """Puts other weights in the place of those of the chain: wrong ones for all but the attacker, client 0."""

    @hookimpl
    def crfl_effective_weights(self, updates: ClientUpdates, aggregate: RuleResult) -> Tensor:
        weights = aggregate.weights.double().clone()
        weights[1:] *= 0.5
        return weights


def test_replaced_weights_are_not_believed_because_an_attacker_is_loud() -> None:
    federation = federation_of(tiny(attack=LOUD, trackers=["answering"]), {"answering": Answering})
    with pytest.raises(PluginFailure, match="crfl_effective_weights does not reconstruct the aggregate"):
        played(federation)


class Largest(Aggregator):
    """The largest value of every coordinate, with a weight for each client and parameter; one way each to lie."""

    lie: Literal["no", "weights", "full", "shape", "type", "failure", "not finite"] = "no"

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        values, lie = updates.values, self.lie
        full = torch.nn.functional.one_hot(values.argmax(0), len(values)).T.to(values)
        told: dict[str, Any] = {
            "full": lambda: full.roll(1, 0),
            "shape": lambda: full[:, 0],
            "type": lambda: full.tolist(),
            "failure": lambda: 1 / 0,
            "not finite": lambda: full * torch.nan,
        }
        weights = full.mean(1) if lie == "weights" else full.amax(1)
        weights = weights.roll(1) if lie == "full" else weights
        return RuleResult(values.amax(0), weights, full_weights=told.get(lie, lambda: full))


@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        ("weights", "`weights` must be the largest of each client's (8, 650) full weights"),
        ("full", MISSED),
        ("shape", "`weights` must be the largest of each client's (8, 650) full weights"),
        ("type", "`weights` must be the largest of each client's (8, 650) full weights"),
        ("failure", "failed in full_weights: ZeroDivisionError: division by zero"),
        ("not finite", "`weights` must be the largest of each client's (8, 650) full weights"),
    ],
)
def test_weights_per_coordinate_are_checked_as_well(lie: str, sentence: str) -> None:
    aggregation = [{"type": "largest", "lie": lie}]
    federation = federation_of(tiny(attack="none", aggregation=aggregation), {"largest": Largest})
    with pytest.raises(PluginFailure, match=re.escape("aggregator 'largest' of (this process)")) as caught:
        played(federation)
    assert sentence in str(caught.value)


def test_an_honest_rule_with_weights_per_coordinate_passes() -> None:
    federation = federation_of(tiny(attack=LOUD, aggregation=["largest"]), {"largest": Largest})
    assert [outcome.record.depends for outcome in played(federation)] == ["all"] * 4


def summed(values: Tensor, weights: Tensor, how: str) -> Tensor:
    """`sum_i p_i u_i` in one of the ways in which a rule may compute it."""
    shares = weights.to(values)
    match how:
        case "product":
            return shares @ values
        case "forwards" | "backwards":
            total, rows = torch.zeros_like(values[0]), list(zip(shares, values, strict=True))
            for share, row in rows if how == "forwards" else reversed(rows):
                total = total + share * row
            return total
        case "precise":
            return (weights.double() @ values.double()).to(values)
    return (shares[:, None] * values).sum(0)


class Adding(Aggregator):
    """An honest mean, added up in some order and precision."""

    how: str

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        weights = even(updates.values)
        return RuleResult(summed(updates.values, weights, self.how), weights)


@settings(deadline=None, max_examples=80)
@given(
    clients=st.integers(1, 200),
    seed=st.integers(0, 999),
    how=st.sampled_from(["product", "forwards", "backwards", "precise", "sum"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    spread=st.floats(0.0, 8.0),
)
def test_no_honest_sum_is_refused_in_whatever_order_it_was_added_up(
    clients: int, seed: int, how: str, dtype: torch.dtype, spread: float
) -> None:
    """Updates of very different lengths, which nearly cancel: rounding is as large as it gets."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((clients, 40)) * 10 ** generator.uniform(-spread, spread, (clients, 1))
    values[clients // 2 :] = -values[: clients - clients // 2][::-1]
    updates = updates_of(torch.from_numpy(values).to(dtype))
    assert run_chain([Adding(how=how)], updates, {}).rounding < 1e-3 * np.abs(values).sum()
