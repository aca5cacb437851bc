"""Hooks that are asked for an answer: effective weights, and whether a round is accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import crfl_core
from crfl_core.extend import (
    Aggregator,
    ClientUpdates,
    PluginFailure,
    Round,
    RuleResult,
    RunContext,
    State,
    Tracker,
    hookimpl,
)
from tests.plugin_loading.watched_runs import SMALL, run


def test_crfl_effective_weights_may_replace_the_reported_ones(tmp_path: Path) -> None:
    class Answers(Tracker):
        @hookimpl
        def crfl_effective_weights(self, updates: ClientUpdates, aggregate: RuleResult) -> Tensor | None:
            return aggregate.weights.double() * (1 + 1e-6) if updates.round.number == 2 else None

    result = run(tmp_path, Answers)
    assert [record.depends for record in result.ledger.rounds] == ["fixed", "all", "fixed"]
    assert [record.weights_from for record in result.ledger.rounds] == [
        "chain",
        "tracker 'tracker-0' of (this process)",
        "chain",
    ]
    samples = np.asarray(result.ledger.facts.samples)
    answered = result.ledger.clients.of_round(2)
    np.testing.assert_allclose(answered.weight, samples / samples.sum() * (1 + 1e-6), rtol=1e-7)
    np.testing.assert_array_equal(answered.weight_bound, answered.weight)


def test_crfl_effective_weights_takes_the_first_answer_in_the_order_of_the_config(tmp_path: Path) -> None:
    asked: list[str] = []

    class Passes(Tracker):
        @hookimpl
        def crfl_effective_weights(self) -> None:
            asked.append("passes")

    class Answers(Tracker):
        @hookimpl
        def crfl_effective_weights(self, aggregate: RuleResult) -> Tensor:
            asked.append("answers")
            return aggregate.weights.double() * (1 + 1e-6)

    class Late(Answers):
        pass

    result = run(tmp_path, Passes, Answers, Late, rounds=1)
    assert asked == ["passes", "answers"]
    assert result.ledger.rounds[0].weights_from == "tracker 'tracker-1' of (this process)"


def test_an_answer_that_equals_the_weights_of_the_chain_replaces_nothing(tmp_path: Path) -> None:
    class Agrees(Tracker):
        @hookimpl
        def crfl_effective_weights(self, aggregate: RuleResult) -> Tensor:
            return aggregate.weights.double()

    result = run(tmp_path, Agrees)
    assert {(record.depends, record.weights_from) for record in result.ledger.rounds} == {("fixed", "chain")}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda weights: weights * 1.01, "does not reconstruct the aggregate"),
        (lambda weights: weights * torch.nan, "does not reconstruct the aggregate"),
        (lambda weights: weights[1:], "must return a tensor of 5 weights"),
        (lambda weights: weights.tolist(), "must return a tensor of 5 weights"),
    ],
    ids=["slightly off", "not finite", "too few", "no tensor"],
)
def test_crfl_effective_weights_that_do_not_reconstruct_the_aggregate_stop_the_run(
    tmp_path: Path, answer: Callable[[Tensor], object], reason: str
) -> None:
    class Answers(Tracker):
        @hookimpl
        def crfl_effective_weights(self, aggregate: RuleResult) -> object:
            return answer(aggregate.weights)

    with pytest.raises(PluginFailure, match=f"tracker 'tracker-0' of .*: crfl_effective_weights {reason}"):
        run(tmp_path, Answers)


def test_crfl_accept_round_goes_on_from_the_broadcast_model_after_a_rejection(tmp_path: Path) -> None:
    starts: dict[int, Tensor] = {}

    class Rejects(Tracker):
        @hookimpl
        def crfl_accept_round(self, run: RunContext, current: Round, candidate: Tensor) -> bool:
            assert candidate.shape == (run.model.layout.size,)
            starts[current.number] = current.start
            return current.number != 2

    result = run(tmp_path, Rejects)
    assert [record.accepted for record in result.ledger.rounds] == [True, False, True]
    torch.testing.assert_close(starts[3], starts[2], rtol=0, atol=0)
    assert not result.ledger.clients.of_round(2).weight.any()
    assert result.ledger.clients.of_round(3).weight.sum() == pytest.approx(1)


def test_crfl_accept_round_needs_one_rejection_and_ignores_who_has_no_opinion(tmp_path: Path) -> None:
    class NoOpinion(Tracker):
        @hookimpl
        def crfl_accept_round(self) -> None:
            return None

    class Accepts(Tracker):
        @hookimpl
        def crfl_accept_round(self) -> bool:
            return True

    class RejectsTheLast(Tracker):
        @hookimpl
        def crfl_accept_round(self, current: Round) -> bool:
            return current.number < 3

    assert all(record.accepted for record in run(tmp_path / "one", NoOpinion).ledger.rounds)
    result = run(tmp_path / "other", Accepts, RejectsTheLast, NoOpinion)
    assert [record.accepted for record in result.ledger.rounds] == [True, True, False]


def test_crfl_accept_round_shows_a_step_of_the_aggregation_its_own_state(tmp_path: Path) -> None:
    seen: list[int] = []

    class Counting(Aggregator):
        def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
            weights = updates.values.new_full((len(updates.values),), 1 / len(updates.values))
            count = state.get("count", torch.zeros(1)) + 1
            return RuleResult(update=weights @ updates.values, weights=weights, state={"count": count})

        @hookimpl
        def crfl_accept_round(self, current: Round, state: State) -> bool:
            seen.append(int(state["count"]))
            return current.number != 2

    class Watch(Tracker):
        @hookimpl
        def crfl_accept_round(self, state: State) -> None:
            assert not state

    crfl_core.run(
        SMALL | {"aggregation": ["counting"], "trackers": ["watch"]},
        out=tmp_path / "run",
        plugins={"counting": Counting, "watch": Watch},
    )
    assert seen == [1, 2, 2]  # the rejected round leaves no trace in the state
