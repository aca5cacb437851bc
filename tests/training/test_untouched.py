"""Plugins that change what they are given are named: the core works with what it hands out, and would not notice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from crfl_engines.local import Local
from torch import Tensor

from crfl_core.extend import (
    Aggregator,
    Attack,
    AttackerView,
    Batches,
    ClientUpdates,
    FederatedData,
    LocalUpdates,
    Plugin,
    PluginFailure,
    Round,
    RuleResult,
    RunContext,
    State,
    Streams,
    Tracker,
    TrainingTask,
    hookimpl,
)
from crfl_core.plugin_loading.hooks import Hooks
from tests.certificates.federations import small
from tests.certificates.worlds import federation_of, play


def mean(updates: ClientUpdates) -> RuleResult:
    weights = torch.full((len(updates.values),), 1 / len(updates.values), dtype=torch.float64)
    return RuleResult(update=weights.to(updates.values) @ updates.values, weights=weights)


class ThroughNumPy(Aggregator):
    """Sorts every coordinate where it lies."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        updates.values.numpy().sort(axis=0)
        return mean(updates)


class ThroughData(Aggregator):
    """Moves the broadcast model by a way that PyTorch does not count."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        updates.round.start.data.mul_(1.5)
        return mean(updates)


class Quiet(Attack):
    """Does nothing."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}


class Early(Quiet):
    """Poisons the data of all clients before training."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        data.y.fill_(1)
        return {}


class InPlace(Quiet):
    """Poisons what it was given, so that nothing seems to have changed."""

    def poison(self, batches: Batches, state: State) -> Batches:
        batches.x[..., :8] = 1.0
        batches.y.fill_(3)
        return batches


class BackDoor(Quiet):
    """Moves the model itself, around every cap."""

    def craft(self, known: AttackerView, state: State) -> Tensor:
        known.round.start.add_(1.0)
        return known.own_updates


class Pushing(Tracker):
    """Does not only watch."""

    @hookimpl
    def crfl_round_started(self, current: Round) -> None:
        current.start.add_(1.0)


class Counting(Tracker):
    """Gives the first client all the weight."""

    @hookimpl
    def crfl_round_started(self, current: Round) -> None:
        current.clients.samples[0] = 10**6


class Stretching(Tracker):
    """Makes all inputs longer."""

    @hookimpl
    def crfl_round_started(self, run: RunContext) -> None:
        run.features.mul_(3.0)


class Restarting(Local):
    """Trains, and moves the models that were broadcast."""

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        yield from super().train(task)
        task.starts.mul_(1.5)


LIES: dict[type[Plugin], tuple[str, dict[str, Any]]] = {
    ThroughNumPy: ("aggregator 'lie'.*: aggregate()", {"aggregation": ["lie"]}),
    ThroughData: ("aggregator 'lie'.*: aggregate()", {"aggregation": ["lie"]}),
    Early: ("attack 'lie'.*: prepare()", {"attack": {"type": "lie", "rounds": [2]}}),
    InPlace: ("attack 'lie'.*: poison()", {"attack": {"type": "lie", "rounds": [2]}}),
    BackDoor: ("attack 'lie'.*: craft()", {"attack": {"type": "lie", "rounds": [2]}}),
    Pushing: ("tracker 'lie'.*: crfl_round_started", {"trackers": ["lie"]}),
    Counting: ("tracker 'lie'.*: crfl_round_started", {"trackers": ["lie"]}),
    Stretching: ("tracker 'lie'.*: crfl_round_started", {"trackers": ["lie"]}),
    Restarting: ("engine 'lie'.*: train()", {"engine": {"type": "lie"}}),
}


@pytest.mark.parametrize("plugin", LIES, ids=[plugin.__name__ for plugin in LIES])
def test_a_plugin_that_changes_what_it_is_given_stops_the_run(plugin: type[Plugin]) -> None:
    who, config = LIES[plugin]
    message = who.replace("()", r"\(\)") + r" \(.*test_untouched\.py:\d+\) changed what it was given: work on a copy"
    with pytest.raises(PluginFailure, match=message):
        play_with(config, plugin)


def play_with(config: dict[str, Any], plugin: type[Plugin]) -> None:
    federation = federation_of(small(**config), {"lie": plugin})
    play(federation, Hooks(federation.config.named_plugins()))


class Reusing(Local):
    """Hands on every client in the same memory."""

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        assert self._job is not None
        memory: Tensor | None = None
        for row in range(len(task.clients)):
            part = self._job.train(task, slice(row, row + 1))
            memory = part.updates.clone() if memory is None else memory.copy_(part.updates)
            yield LocalUpdates(part.part, memory, part.measurements)


def test_a_rule_that_needs_all_updates_gets_them_from_an_engine_that_uses_its_memory_again() -> None:
    config = small(aggregation=["rfa"])
    expected = play(federation_of(config))
    found = play(federation_of(config | {"engine": {"type": "reusing"}}, {"reusing": Reusing}))
    np.testing.assert_allclose(found.final.numpy(), expected.final.numpy(), rtol=1e-9, atol=1e-12)
