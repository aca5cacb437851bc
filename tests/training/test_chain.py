"""Aggregation chains: whatever stages and rule are composed, `aggregate = sum_i p_i u_i + offset`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import pytest
import torch
from crfl_aggregators.fedavg import FedAvg
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field
from torch import Tensor

from crfl_core.extend import (
    Aggregator,
    CapStage,
    Clients,
    ClientUpdates,
    FixedStage,
    Mixing,
    OptionError,
    PluginFailure,
    RoundFacts,
    RuleResult,
    Stage,
    StageResult,
    State,
)
from crfl_core.plugin_api.aggregator import AggregationStep, chain_dependence
from crfl_core.records.round import Dependence
from crfl_core.training.aggregation import LinearChain
from crfl_core.training.aggregation_chain import run_chain
from tests.oracle import participants, updates_of


class Cap(CapStage):
    """Shrinks updates beyond a norm: each by a factor that depends on itself alone."""

    bound: float = Field(1.0, gt=0)

    def caps(self, clients: Clients) -> Tensor:
        return torch.full((len(clients),), self.bound, dtype=torch.float64)


class CapAtZero(Cap):
    """The same, whatever weight decay there is."""

    centre: ClassVar[Literal["decay", "zero"]] = "zero"


class Pairs(FixedStage):
    """Replaces neighbours by their mean; the last one may stay alone."""

    def mixing(self, facts: RoundFacts) -> Mixing:
        clients = len(facts.clients)
        matrix = torch.zeros(-(-clients // 2), clients, dtype=torch.float64)
        for row, first in enumerate(range(0, clients, 2)):
            members = slice(first, min(first + 2, clients))
            matrix[row, members] = 1.0 / (members.stop - first)
        return Mixing(matrix)


class Smear(Stage):
    """Every update becomes the mean of itself and of the longest one: as many rows as before, but mixed."""

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        mixing = 0.5 * torch.eye(len(updates.values), dtype=updates.values.dtype)
        mixing[:, int(updates.values.norm(dim=1).argmax())] += 0.5
        return StageResult(mixing @ updates.values, mixing)


class Shift(FixedStage):
    """Adds something to every update, a multiple of its position."""

    def mixing(self, facts: RoundFacts) -> Mixing:
        rows = torch.arange(1.0, len(facts.clients) + 1, dtype=torch.float64)
        return Mixing(torch.ones_like(rows), offset=rows[:, None].expand(-1, facts.layout.size))


class Move(FixedStage):
    """Adds the same to every update."""

    def mixing(self, facts: RoundFacts) -> Mixing:
        shift = torch.linspace(-1.0, 1.0, facts.layout.size, dtype=torch.float64)
        return Mixing(torch.eye(len(facts.clients), dtype=torch.float64), offset=shift)


class Nearest(Aggregator):
    """The update nearest to the mean, moved by a constant."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        nearest = int((updates.values - updates.values.mean(0)).norm(dim=1).argmin())
        weights = torch.zeros(len(updates.values), dtype=updates.values.dtype)
        weights[nearest] = 1.0
        offset = torch.full_like(updates.values[0], 0.25)
        return RuleResult(updates.values[nearest] + offset, weights, offset=offset)


class Largest(Aggregator):
    """The largest value of every coordinate: a weight for each client and parameter."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        winners = updates.values.argmax(0)
        full = torch.nn.functional.one_hot(winners, len(updates.values)).T.to(updates.values)
        return RuleResult(updates.values.amax(0), full.amax(1), full_weights=lambda: full)


stages = st.sampled_from([Cap(bound=2.0), Cap(bound=0.5), Pairs(), Smear(), Shift(), Move()])
rules = st.sampled_from([FedAvg(), FedAvg(weighting="uniform"), Nearest(), Largest()])
samples_of_clients = st.lists(st.integers(1, 50), min_size=1, max_size=7)


@settings(deadline=None, max_examples=150)
@given(chosen=st.lists(stages, max_size=4), rule=rules, samples=samples_of_clients, seed=st.integers(0, 999))
def test_the_weights_and_the_offset_rebuild_the_aggregate(
    chosen: list[Stage], rule: Aggregator, samples: list[int], seed: int
) -> None:
    updates = updates_of(samples, seed=seed)
    aggregate = run_chain([*chosen, rule], updates, {}).reported
    assert aggregate is not None
    weights = aggregate.weights[:, None] if aggregate.full_weights is None else aggregate.full_weights()
    rebuilt = (weights * updates.values).sum(0)
    if aggregate.offset is not None:
        rebuilt = rebuilt + aggregate.offset
    torch.testing.assert_close(rebuilt, aggregate.update, rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=60)
@given(chosen=st.lists(stages, max_size=4), samples=samples_of_clients, seed=st.integers(0, 999))
def test_weight_bounds_are_the_weights_without_the_shrinking(
    chosen: list[Stage], samples: list[int], seed: int
) -> None:
    """With every cap far away the same chain shrinks nothing: its weights are the bounds."""
    updates = updates_of(samples, seed=seed)
    loose = [Cap(bound=1e9) if isinstance(stage, Cap) else stage for stage in chosen]
    rule = FedAvg(weighting="uniform")
    result = run_chain([*chosen, rule], updates, {})
    if not any(isinstance(stage, Smear) for stage in chosen):  # whom it favours depends on the shrunk updates
        expected = run_chain([*loose, rule], updates, {}).weights
        torch.testing.assert_close(result.weight_bound, expected, rtol=1e-9, atol=1e-12)
    assert (result.weights <= result.weight_bound + 1e-12).all()


def test_a_chain_without_stages_reports_what_the_rule_does() -> None:
    updates = updates_of([10, 30])
    result = run_chain([FedAvg()], updates, {})
    assert result.weights.tolist() == result.weight_bound.tolist() == [0.25, 0.75]
    assert result.cap.tolist() == [torch.inf, torch.inf]
    assert not result.has_offset


def test_several_caps_count_as_the_smallest() -> None:
    result = run_chain([Cap(bound=2.0), Cap(bound=0.5), Cap(bound=1.0), FedAvg()], updates_of([1, 1, 1]), {})
    assert result.cap.tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("mixing", [Pairs(), Smear()], ids=["merged", "mixed"])
def test_a_cap_behind_a_mixing_stage_bounds_no_clients_own_update(mixing: Stage) -> None:
    """What is capped there is a mixture. Its norm says nothing about one client's part in it."""
    behind = run_chain([mixing, Cap(bound=0.5), FedAvg()], updates_of([1, 1, 1, 1]), {})
    assert behind.cap.tolist() == [torch.inf] * 4
    before = run_chain([Cap(bound=0.5), mixing, FedAvg()], updates_of([1, 1, 1, 1]), {})
    assert before.cap.tolist() == [0.5] * 4


@settings(deadline=None, max_examples=60)
@given(chosen=st.lists(stages, max_size=4), samples=samples_of_clients, seed=st.integers(0, 999))
def test_no_client_moves_the_aggregate_by_more_than_its_weight_bound_times_its_cap(
    chosen: list[Stage], samples: list[int], seed: int
) -> None:
    updates = updates_of(samples, seed=seed)
    result = run_chain([*chosen, FedAvg()], updates, {})
    contributions = result.weights * updates.values.norm(dim=1)
    if chain_dependence([*chosen, FedAvg()], updates.round.clients) != "all":
        assert (contributions <= result.weight_bound * result.cap * (1 + 1e-9)).all()


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([FedAvg()], "fixed"),
        ([Pairs(), Shift(), FedAvg()], "fixed"),
        ([Cap(), Pairs(), FedAvg()], "own"),
        ([Pairs(), Cap(), FedAvg()], "all"),
        ([Cap(), Smear(), FedAvg()], "all"),
        ([Nearest()], "all"),
        ([Cap(), Nearest()], "all"),
    ],
)
def test_a_chain_depends_on_what_its_worst_link_depends_on(
    steps: Sequence[AggregationStep], expected: Dependence
) -> None:
    assert chain_dependence(steps, participants([3, 4, 5])) == expected
    assert run_chain(steps, updates_of([3, 4, 5]), {}).depends == expected


def test_merged_clients_hold_the_mean_of_their_samples() -> None:
    """Two pairs of 10 and 20, of 30 and 40 samples are weighted 15 to 35, within a pair equally."""
    result = run_chain([Pairs(), FedAvg()], updates_of([10, 20, 30, 40]), {})
    torch.testing.assert_close(result.weights, torch.tensor([0.15, 0.15, 0.35, 0.35]).double())


class Counting(Stage):
    """Counts how often it was called, in its state."""

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        calls = state.get("calls", torch.zeros(())) + 1
        eye = torch.eye(len(updates.values), dtype=updates.values.dtype)
        return StageResult(updates.values.clone(), eye, state={"calls": calls})


def test_every_step_gets_its_own_state_back() -> None:
    updates, steps = updates_of([1, 2]), [Counting(), Cap(), Counting(), FedAvg()]
    once = run_chain(steps, updates, {}).states
    again = run_chain(steps, updates, {**once, "aggregation.2": {}}).states
    assert [float(again[key]["calls"]) for key in ("aggregation.0", "aggregation.2")] == [2.0, 1.0]


Fault = Literal["values", "mixing", "offset", "raise", "option"]


class BrokenStage(Stage):
    """Breaks the contract in a chosen way."""

    fault: Fault

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        values, eye = updates.values.clone(), torch.eye(len(updates.values), dtype=updates.values.dtype)
        if self.fault == "raise":
            raise ZeroDivisionError("no neighbours")
        if self.fault == "option":
            raise OptionError("size", "found 3, but there are 2 clients")
        return StageResult(
            values=values[:, :-1] if self.fault == "values" else values,
            mixing=eye[:-1] if self.fault == "mixing" else eye,
            offset=torch.zeros(2) if self.fault == "offset" else None,
        )


@pytest.mark.parametrize(
    ("fault", "found", "expected"),
    [
        ("values", "(3, 5)", "(3, 6)"),
        ("mixing", "(2, 3)", "(3, 3) or (3,)"),
        ("offset", "(2,)", "(3, 6) or (6,)"),
    ],
)
def test_a_stage_with_the_wrong_shapes_is_named(fault: Fault, found: str, expected: str) -> None:
    place = rf"'BrokenStage' of \(this process\): transform\(\) \({re.escape(__file__)}:\d+\) "
    message = re.escape(f"returned {fault} of shape {found} for updates (3, 6): expected {expected}")
    with pytest.raises(PluginFailure, match=place + message):
        run_chain([BrokenStage(fault=fault), FedAvg()], updates_of([1, 2, 3]), {})


def test_a_stage_that_raises_is_named_with_what_it_raised() -> None:
    message = "aggregator 'BrokenStage' of (this process) failed in transform: ZeroDivisionError: no neighbours"
    with pytest.raises(PluginFailure, match=re.escape(message)):
        run_chain([BrokenStage(fault="raise"), FedAvg()], updates_of([1, 2]), {})


def test_an_error_that_a_plugin_raised_on_purpose_is_left_as_it_is() -> None:
    with pytest.raises(OptionError, match="size: found 3, but there are 2 clients"):
        run_chain([BrokenStage(fault="option"), FedAvg()], updates_of([1, 2]), {})


class BrokenRule(Aggregator):
    """Breaks the contract in a chosen way."""

    fault: Literal["update", "weights", "nan", "offset", "raise"]

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        update, weights = updates.values.mean(0), torch.full((len(updates.values),), 0.5).double()
        offset: Tensor | None = None
        match self.fault:
            case "update":
                update = update[:-1]
            case "weights":
                weights = weights[:-1]
            case "nan":
                update = update * torch.nan
            case "offset":
                offset = torch.zeros(2)
            case "raise":
                raise KeyError("momentum")
        return RuleResult(update, weights, offset=offset)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("update", "returned update of shape (5,) for updates (3, 6): expected (6,)"),
        ("weights", "returned weights of shape (2,) for updates (3, 6): expected (3,)"),
        ("offset", "returned offset of shape (2,) for updates (3, 6): expected (6,)"),
        ("nan", "returned a non-finite update or weights for finite updates"),
        ("raise", "failed in aggregate: KeyError: 'momentum'"),
    ],
)
def test_a_broken_rule_is_named_with_what_it_did(
    fault: Literal["update", "weights", "nan", "offset", "raise"], message: str
) -> None:
    place = rf": aggregate\(\) \({re.escape(__file__)}:\d+\)" if fault != "raise" else ""
    named = rf"aggregator 'BrokenRule' of \(this process\){place} {re.escape(message)}"
    with pytest.raises(PluginFailure, match=named):
        run_chain([BrokenRule(fault=fault)], updates_of([1, 2, 3]), {})


class BrokenMixing(FixedStage):
    """Breaks the contract of a fixed stage in a chosen way."""

    fault: Literal["nan", "scalar", "number", "infinite offset"]

    def mixing(self, facts: RoundFacts) -> Mixing:
        ones = torch.ones(len(facts.clients), dtype=torch.float64)
        match self.fault:
            case "nan":
                return Mixing(ones * torch.nan)
            case "scalar":
                return Mixing(torch.tensor(1.0))
            case "number":
                return Mixing(1.0)  # type: ignore[arg-type]
            case "infinite offset":
                return Mixing(ones, torch.full((facts.layout.size,), torch.inf))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nan", "returned numbers that are not finite"),
        ("scalar", "returned matrix of shape ()"),
        ("number", "returned matrix as float"),
        ("infinite offset", "returned numbers that are not finite"),
    ],
)
def test_a_broken_mixing_is_named_and_no_other_step_is_blamed(fault: Any, message: str) -> None:
    named = rf"'BrokenMixing' of \(this process\): mixing\(\) \({re.escape(__file__)}:\d+\) {re.escape(message)}"
    with pytest.raises(PluginFailure, match=named):
        LinearChain.of([BrokenMixing(fault=fault), FedAvg()], updates_of([1, 2, 3]).round.facts)


class TooPrecise(Aggregator):
    """Answers in double precision, whatever it is asked in."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        weights = torch.full((len(updates.values),), 1 / len(updates.values), dtype=torch.float64)
        return RuleResult(weights @ updates.values.double(), weights)


def test_a_rule_that_changes_the_precision_of_the_model_is_named() -> None:
    given = updates_of([1, 2, 3])
    single = ClientUpdates(given.values.float(), replace(given.round, start=given.round.start.float()))
    message = r"aggregate\(\) \(.*\) returned update in torch.float64 for updates in torch.float32: end with update.to"
    with pytest.raises(PluginFailure, match=message):
        run_chain([TooPrecise()], single, {})
