"""Aggregation rules and stages that are broken in one way each."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from crfl_aggregators.fedavg import FedAvg
from numpy.typing import NDArray
from pydantic import PrivateAttr
from torch import Tensor

from crfl_core.extend import (
    Aggregator,
    CapStage,
    Clients,
    ClientUpdates,
    FixedStage,
    LinearAggregator,
    Mixing,
    Plugin,
    RoundFacts,
    RuleResult,
    Stage,
    StageResult,
    State,
)
from crfl_core.plugin_api.aggregator import AggregationStep
from tests.testing.support import assert_fails, checks_of


def even(values: Tensor) -> Tensor:
    return values.new_full((len(values),), 1 / len(values), dtype=torch.float64)


def weighted(values: Tensor, weights: Tensor) -> RuleResult:
    return RuleResult(weights.to(values) @ values, weights)


class Squeezed(Aggregator):
    """Loses an axis if there is a single parameter."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        return RuleResult(updates.values.mean(0).squeeze(), even(updates.values))


class Overflowing(Aggregator):
    """Weights by fourth powers, which overflow."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        powers = updates.values.pow(4).sum(1) + 1e-30
        return weighted(updates.values, powers / powers.sum())


class FiveOrNone(Aggregator):
    """Counts on five clients."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        best = updates.values.norm(dim=1).topk(5).indices
        weights = torch.zeros(len(updates.values), dtype=torch.float64)
        weights[best] = 0.2
        return weighted(updates.values, weights)


class InPlace(Aggregator):
    """Clamps what the clients submitted, for all steps after it."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        return weighted(updates.values.clamp_(-1.0, 1.0), even(updates.values))


class InPlaceThroughNumpy(Aggregator):
    """Clamps what the clients submitted without a tensor noticing."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        updates.values.numpy().clip(-1.0, 1.0, out=updates.values.numpy())
        return weighted(updates.values, even(updates.values))


class Aliasing(Aggregator):
    """Returns the first update itself."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        weights = torch.zeros(len(updates.values))
        weights[0] = 1.0
        return RuleResult(updates.values[0], weights)


class Doubling(Aggregator):
    """Turns single into double precision."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        return weighted(updates.values.double(), even(updates.values))


class Remembering(Aggregator):
    """Keeps its state where no checkpoint finds it."""

    _seen: int = PrivateAttr(default=0)

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        self._seen += 1
        return weighted(updates.values, even(updates.values) / self._seen)


class Pickling(Aggregator):
    """Keeps a Python object in its state."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        found = weighted(updates.values, even(updates.values))
        return RuleResult(found.update, found.weights, state={"seen": [1, 2]})  # type: ignore[dict-item]


class Negative(Aggregator):
    """Subtracts the first client."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        weights = even(updates.values)
        weights[0] *= -1.0
        return weighted(updates.values, weights)


class Summing(Aggregator):
    """Adds updates up."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        return weighted(updates.values, torch.ones(len(updates.values), dtype=torch.float64))


class Pretending(Aggregator):
    """Takes the median and reports the weights of a mean."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        return RuleResult(updates.values.median(0).values, even(updates.values))


class FirstComeFirstServed(Aggregator):
    """Prefers the client that comes first."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        weights = torch.zeros(len(updates.values), dtype=torch.float64)
        weights[0] = 1.0
        return weighted(updates.values, weights)


class Opinionated(Aggregator):
    """Adds something of its own."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        found = weighted(updates.values, even(updates.values))
        offset = torch.full_like(found.update, 0.3)
        return RuleResult(found.update + offset, found.weights, offset=offset)


class Secretive(Aggregator):
    """Adds something of its own, and does not say so."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        found = weighted(updates.values, even(updates.values))
        return RuleResult(found.update + 0.3, found.weights)


class Understating(Aggregator):
    """Reports mean instead of largest weights."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        chosen = updates.values == updates.values.amax(0)
        full = (chosen / chosen.sum(0)).to(updates.values)
        return RuleResult((full * updates.values).sum(0), full.mean(1), full_weights=lambda: full)


class Wordy(Aggregator):
    """Notes words."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        found = weighted(updates.values, even(updates.values))
        return RuleResult(found.update, found.weights, notes={"mood": "good"})  # type: ignore[dict-item]


class SinglePrecision(LinearAggregator):
    """Rounds its weights."""

    def weights(self, clients: Clients) -> Tensor:
        return torch.full((len(clients),), 1 / len(clients))


class Falling(FedAvg):
    """Claims that two attackers do less harm than one."""

    def breakdown(self, clients: Clients, aggregate: RuleResult, update_bound: float) -> NDArray[np.float64]:
        return np.array([0.0, 3.0, 1.0])


class Optimistic(FedAvg):
    """Claims that attackers cannot move it far."""

    def breakdown(self, clients: Clients, aggregate: RuleResult, update_bound: float) -> NDArray[np.float64]:
        return update_bound * np.array([0.0, 0.001, 0.002])


class InPlaceWhereItTrains(Aggregator):
    """Converts to single precision, which is not a copy in a real run."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        values = updates.values.float()
        values.sub_(0.0).clamp_(max=1.0)
        return weighted(values.to(updates.values), even(values))


class AliasingWhereItTrains(Aggregator):
    """Answers a single client with the update itself, in single precision."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        weights = even(updates.values)
        if len(weights) == 1:
            return RuleResult(updates.values[0].float().to(updates.values), weights)
        return weighted(updates.values, weights)


class WrongInLargeModels(Aggregator):
    """Works block by block, and forgets the last one."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        found = weighted(updates.values, even(updates.values))
        found.update[8192:] = 0.0
        return found


class Diary(Aggregator):
    """Looks up the last round in a diary that all instances share."""

    pages: ClassVar[dict[int, Tensor]] = {}

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        number, mean = updates.round.number, updates.values.mean(0)
        self.pages[number] = mean
        offset = 0.1 * self.pages.get(number - 1, torch.zeros_like(mean)).to(mean)
        return RuleResult(mean + offset, even(updates.values), offset=offset)


class ForgettingDiary(Aggregator):
    """Weighs by the longest round since the last round 1, in a diary that all instances share."""

    pages: ClassVar[list[float]] = []

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        if updates.round.number == 1:
            self.pages.clear()
        self.pages.append(float(updates.values.double().norm()))
        return weighted(updates.values, even(updates.values) / (1.0 + max(self.pages)))


class Unkeyed(LinearAggregator):
    """Draws weights that no key decides."""

    def weights(self, clients: Clients) -> Tensor:
        drawn = torch.rand(len(clients), dtype=torch.float64)
        return drawn / drawn.sum()


class HalfTheTruth(Aggregator):
    """Forgets in its breakdown that an attacker also takes its honest update away."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        short = updates.values.norm(dim=1) <= 1.0
        return weighted(updates.values, short.double() / len(short))

    def breakdown(self, clients: Clients, aggregate: RuleResult, update_bound: float) -> NDArray[np.float64]:
        return np.arange(len(clients) + 1.0) / len(clients)


class AllPairs(Aggregator):
    """Compares all clients in all coordinates at once."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        near = (updates.values[:, None] - updates.values[None]).abs().sum(-1)
        return weighted(updates.values, even(updates.values) * (near.sum(1) >= 0))


class AllPairsInNumpy(Aggregator):
    """The same where PyTorch does not see it."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        values = updates.values.numpy()
        near = np.abs(values[:, None] - values[None]).sum(-1)
        return weighted(updates.values, even(updates.values) * torch.from_numpy(near.sum(1) >= 0))


RULES: dict[str, list[tuple[Plugin, str]]] = {
    "answers_every_round": [(Squeezed(), "a single parameter, (12, 1)")],
    "huge_updates_do_no_harm": [(Overflowing(), "a round with updates of norm 1e+18")],
    "survives_missing_clients": [(FiveOrNone(), "cope with fewer clients")],
    "keeps_inputs": [
        (InPlace(), "the input.values differs"),
        (InPlaceThroughNumpy(), "the input.values differs"),
        (InPlaceWhereItTrains(), "torch.float32"),
    ],
    "answers_share_no_memory_with_inputs": [
        (Aliasing(), "update is a view of the updates"),
        (AliasingWhereItTrains(), "a single client, torch.float32"),
    ],
    "keeps_precision_and_device": [(Doubling(), "end with update.to(updates.values)")],
    "state_survives_a_checkpoint": [
        (Remembering(), "keep nothing on the instance"),
        (Pickling(), "state['seen'] must be a tensor, found list"),
        (Diary(), "after another run"),
    ],
    "federations_do_not_meet": [(ForgettingDiary(), "the groups of a run"), (Diary(), "in round 2")],
    "a_resumed_run_ends_the_same": [(Remembering(), "the same run, interrupted or not")],
    "memory_grows_with_the_updates_alone": [
        (AllPairs(), "values @ values.T"),
        (AllPairsInNumpy(), "arrays of at most 8 times"),
    ],
    "weights_are_not_negative": [(Negative(), "weights of at least 0")],
    "weights_sum_to_at_most_one": [(Summing(), "divide by their sum")],
    "weights_rebuild_the_aggregate": [
        (Pretending(), "update = sum_i p_i u_i + offset"),
        (WrongInLargeModels(), "10,000 parameters"),
    ],
    "order_of_clients_does_not_matter": [(FirstComeFirstServed(), "round.clients.ids")],
    "respects_agreement": [
        (Opinionated(), "zero for zero updates"),
        (Secretive(), "in another direction"),
    ],
    "full_weights_agree_with_weights": [(Understating(), "each client's largest weight")],
    "notes_are_numbers": [(Wordy(), "notes['mood'] must be a finite number, found 'good'")],
    "fixes_weights": [
        (SinglePrecision(), "torch.float32"),
        (Unkeyed(), "the same weights whenever they are asked for"),
    ],
    "breakdown_grows_with_attackers": [(Falling(), "a drift that falls: [0.0, 3.0, 1.0]")],
    "respects_breakdown": [(Optimistic(), "by 1 attackers"), (HalfTheTruth(), "by 1 attackers")],
}


def passed_on(updates: ClientUpdates, factors: Tensor) -> StageResult:
    return StageResult(factors[:, None] * updates.values, factors)


class Undeclared(Stage):
    """Adds what it does not report."""

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        return StageResult(updates.values + 1.0, torch.ones_like(updates.values[:, 0]))


class Amplifying(Stage):
    """Forgets to divide by the number of clients."""

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        return passed_on(updates, torch.full_like(updates.values[:, 0], len(updates.values)))


class Multiplying(Stage):
    """Hands everything on twice."""

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        twice = torch.eye(len(updates.values), dtype=updates.values.dtype).repeat(2, 1)
        return StageResult(twice @ updates.values, twice)


class ByPosition(Stage):
    """Trusts the first half."""

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        first = torch.arange(len(updates.values)) < len(updates.values) / 2
        return passed_on(updates, 0.5 * first.to(updates.values))


class Fickle(FixedStage):
    """Draws other shares whenever it is asked."""

    _draws: np.random.Generator = PrivateAttr(default_factory=np.random.default_rng)

    def mixing(self, facts: RoundFacts) -> Mixing:
        return Mixing(torch.from_numpy(self._draws.uniform(0.5, 1.0, len(facts.clients))))


class Restless(FixedStage):
    """Moves the model by something new whenever it is asked."""

    _draws: np.random.Generator = PrivateAttr(default_factory=np.random.default_rng)

    def mixing(self, facts: RoundFacts) -> Mixing:
        offset = torch.from_numpy(self._draws.standard_normal(facts.layout.size))
        return Mixing(torch.ones(len(facts.clients), dtype=torch.float64), offset=offset)


class Queueing(CapStage):
    """Lets those who come first have longer updates."""

    def caps(self, clients: Clients) -> Tensor:
        return 1.0 / torch.arange(1.0, len(clients) + 1, dtype=torch.float64)


STAGES: dict[str, list[tuple[Plugin, str]]] = {
    "mixing_rebuilds_what_is_handed_on": [(Undeclared(), "everything else as `offset`")],
    "mixing_only_averages": [(Amplifying(), "rows that sum to 12")],
    "announces_outputs": [(Multiplying(), "override outputs()")],
    "order_of_clients_does_not_matter": [(ByPosition(), "not by position")],
    "mixing_is_the_same_when_asked_again": [(Fickle(), "the matrix differs"), (Restless(), "the offset differs")],
    "caps_follow_their_clients": [(Queueing(), "compute them from the clients that are given")],
}
EXAMPLES = [
    (check, plugin, word) for kind in (RULES, STAGES) for check, examples in kind.items() for plugin, word in examples
]


@pytest.mark.parametrize(
    ("check", "plugin", "word"), EXAMPLES, ids=[type(plugin).__name__ for _, plugin, _ in EXAMPLES]
)
def test_a_broken_step_is_told_what_to_fix(check: str, plugin: Plugin, word: str) -> None:
    assert_fails(plugin, check, word)


def test_every_check_has_a_step_that_fails_it() -> None:
    assert set(RULES) == checks_of(AggregationStep, Aggregator, LinearAggregator)
    assert set(STAGES) == checks_of(Stage, FixedStage, CapStage)
