"""Rules, stages and hooks get the protocol's facts: never who attacks, nor what attackers really do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from crfl_aggregators.fedavg import FedAvg
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import Tensor

import crfl_core
from crfl_core import extend
from crfl_core.extend import (
    Aggregator,
    CapStage,
    CertificateResult,
    ClientRows,
    Clients,
    ClientUpdates,
    FixedStage,
    LinearAggregator,
    Mixing,
    Plugin,
    PluginFailure,
    Round,
    RoundFacts,
    RoundRecord,
    RuleResult,
    RunContext,
    ServerView,
    Stage,
    StageResult,
    State,
    Tracker,
    hookimpl,
)
from crfl_core.plugin_api import hookspecs
from tests.oracle import federation_of, played, tiny

RATE, STEPS = 0.777, 13
BUSY = tiny()["attack"] | {"rounds": [1, 2, 3, 4], "learning_rate": RATE, "steps": STEPS}
"""Attackers in every round, who train longer and faster than the protocol says."""


class ByWork(LinearAggregator):
    """Weights by the number of samples that a client looks at in a round."""

    def weights(self, clients: Clients) -> Tensor:
        work = torch.from_numpy(clients.steps * clients.batch_size).double()
        return work / work.sum()


class ByReach(CapStage):
    """Caps by how far a client can go: rate times steps."""

    def caps(self, clients: Clients) -> Tensor:
        return torch.from_numpy(100 * clients.learning_rate * clients.steps)


class ByLength(Aggregator):
    """Weights by work again, of a rule that could look at the updates."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        weights = ByWork().weights(updates.round.clients)
        return RuleResult(weights.to(updates.values) @ updates.values, weights)


PLUGINS: dict[str, type[Plugin]] = {"by-work": ByWork, "by-reach": ByReach, "by-length": ByLength}


@pytest.mark.parametrize("aggregation", [["by-work"], ["by-reach", "by-work"], ["by-reach", "by-length"]])
def test_an_attacker_who_works_more_changes_no_weight_and_no_cap(aggregation: list[str]) -> None:
    settings = {"aggregation": aggregation, "training": {"learning_rate": 0.2, "epochs": 1, "batch_size": 16}}
    honest, attacked = (played(federation_of(tiny(attack=attack, **settings), PLUGINS)) for attack in ("none", BUSY))
    assert attacked[0].clients.steps[0] == STEPS != honest[0].clients.steps[0]  # the ledger knows
    assert len(set(honest[0].clients.weight_bound)) > 1
    for one, other in zip(honest, attacked, strict=True):
        np.testing.assert_array_equal(one.clients.weight_bound, other.clients.weight_bound)
        np.testing.assert_array_equal(one.clients.cap, other.clients.cap)


def leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Everything inside an object that has no parts, with the names that lead to it."""
    inside: Mapping[str, object] | None = None
    if is_dataclass(value) and not isinstance(value, type):
        inside = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, BaseModel):
        inside = {name: getattr(value, name) for name in type(value).model_fields}
    elif isinstance(value, Mapping):
        inside = {str(key): entry for key, entry in value.items()}
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        inside = {str(position): entry for position, entry in enumerate(value)}
    elif type(value).__module__.startswith("crfl_"):
        inside = vars(value)
    if inside is None:
        yield path, value
        return
    for name, part in inside.items():
        yield from leaves(part, (*path, name))


def numbers(leaf: object) -> NDArray[np.float64]:
    """The numbers of a leaf; none if it has none."""
    if isinstance(leaf, Tensor | np.ndarray | int | float):
        return np.asarray(leaf, np.float64).ravel()
    return np.zeros(0)


seen: dict[str, list[tuple[str, object]]] = {}
"""What every method was handed: names that lead to a leaf, and the leaf."""


def note(method: str, *arguments: object) -> None:
    """Remember everything in the arguments."""
    found = seen.setdefault(method, [])
    for argument in arguments:
        found += [(".".join((type(argument).__name__, *path)), leaf) for path, leaf in leaves(argument)]


class SpyStage(Stage):
    """Writes down what it is handed, and has every hook."""

    def check(self, clients: Clients) -> None:
        note("check", clients)

    def prepare(self, server: ServerView) -> State:
        note("prepare", server)
        return {}

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        note("transform", updates, state)
        return StageResult(
            updates.values.clone(), torch.ones_like(updates.values[:, 0]), state={"calls": torch.ones(1)}
        )

    @hookimpl
    def crfl_progress(self, phase: str, done: int, total: int) -> None:
        note("crfl_progress", phase, done, total)

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        note("crfl_run_started", run)

    @hookimpl
    def crfl_round_started(self, run: RunContext, current: Round) -> None:
        note("crfl_round_started", run, current)

    @hookimpl
    def crfl_effective_weights(self, updates: ClientUpdates, aggregate: RuleResult) -> None:
        note("crfl_effective_weights", updates, aggregate)

    @hookimpl
    def crfl_accept_round(self, run: RunContext, current: Round, candidate: Tensor, state: State) -> None:
        note("crfl_accept_round", run, current, candidate, state)

    @hookimpl
    def crfl_round_finished(self, run: RunContext, record: RoundRecord, clients: ClientRows) -> None:
        note("crfl_round_finished", run, record, clients)

    @hookimpl
    def crfl_certified(self, run: RunContext, certified: CertificateResult) -> None:
        note("crfl_certified", run, certified)


class SpyFixed(FixedStage):
    """Writes down what it is handed."""

    def mixing(self, facts: RoundFacts) -> Mixing:
        note("mixing", facts)
        return Mixing(torch.ones(len(facts.clients), dtype=torch.float64))


class SpyCap(CapStage):
    """Writes down what it is handed."""

    def caps(self, clients: Clients) -> Tensor:
        note("caps", clients)
        return torch.from_numpy(clients.update_bound)


class SpyRule(Aggregator):
    """Writes down what it is handed."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        note("aggregate", updates, state)
        weights = torch.full((len(updates.values),), 1 / len(updates.values), dtype=torch.float64)
        return RuleResult(weights.to(updates.values) @ updates.values, weights)

    def breakdown(self, clients: Clients, aggregate: RuleResult, update_bound: float) -> None:
        note("breakdown", clients, aggregate, update_bound)


class SpyWeights(FedAvg):
    """Writes down what it is handed."""

    def weights(self, clients: Clients) -> Tensor:
        note("weights", clients)
        return super().weights(clients)


SPIES: dict[str, type[Plugin]] = {
    "spy-stage": SpyStage,
    "spy-fixed": SpyFixed,
    "spy-cap": SpyCap,
    "spy-rule": SpyRule,
    "spy-weights": SpyWeights,
}
CHAINS = [["spy-cap", "spy-fixed", "spy-weights"], ["spy-stage", "spy-weights"], ["spy-cap", "spy-rule"]]
HANDED = {"check", "prepare", "transform", "mixing", "caps", "weights", "aggregate", "breakdown"}
HOOKS = {name for name in vars(hookspecs) if name.startswith("crfl_")} - {
    "crfl_run_failed",  # an error
    "crfl_run_finished",  # the whole run, when there is nothing left to decide
}


@pytest.fixture(scope="module")
def handed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, object]]]:
    """All that plugins were handed in three runs under attack, with continuations."""
    seen.clear()
    for position, chain in enumerate(CHAINS):
        config = tiny(
            attack=BUSY,
            aggregation=chain,
            model={"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
            server={"clip_norm": 4.0, "noise_std": 0.05},
            certificates=["paper", {"type": "tail", "continuations": 8, "selection": 8}],
            threat={"clients": 1, "rounds": [2], "poison": "update"},
        )
        crfl_core.run(config, out=tmp_path_factory.mktemp("spied") / str(position), plugins=SPIES)
    return seen


def test_every_method_and_every_hook_was_called(handed: dict[str, list[tuple[str, object]]]) -> None:
    assert set(handed) == HANDED | HOOKS


def test_nothing_that_is_handed_to_a_step_or_a_hook_says_who_attacks(
    handed: dict[str, list[tuple[str, object]]],
) -> None:
    names = {(method, name) for method, found in handed.items() for name, _ in found}
    assert {name for _, name in names} > {"Clients.steps", "Round.clients.learning_rate", "RunContext.data.partition.0"}
    assert not {(method, name) for method, name in names if "attack" in name or "malicious" in name or "poison" in name}


def test_nothing_tells_the_rates_and_steps_of_attackers(handed: dict[str, list[tuple[str, object]]]) -> None:
    for method, found in handed.items():
        for name, leaf in found:
            assert not (numbers(leaf) == RATE).any(), f"{method}: {name}"
            if name.endswith("steps"):
                assert set(numbers(leaf)) == {5.0}, f"{method}: {name}"


@pytest.mark.parametrize("purpose", ["attack/clients", "noise", "votes/continuation", "batches", "participation"])
def test_no_step_may_draw_what_is_not_its_own(purpose: str) -> None:
    """Who has the streams of a run could draw the attackers again, or take off the noise that will be added."""

    class Curious(FixedStage):
        """Draws something that it should not know."""

        def mixing(self, facts: RoundFacts) -> Mixing:
            drawn = facts.streams.generator(purpose, round_number=facts.number).standard_normal(facts.layout.size)
            return Mixing(torch.ones(len(facts.clients), dtype=torch.float64), offset=-0.02 * torch.from_numpy(drawn))

    federation = federation_of(tiny(aggregation=["curious", "fedavg"]), {"curious": Curious})
    message = f"failed in mixing: ValueError: {purpose!r} is not drawn here: start it with 'aggregation'"
    with pytest.raises(PluginFailure, match=re.escape(message)):
        played(federation)


def test_nor_may_a_hook(tmp_path: Path) -> None:
    class Curious(Tracker):
        """Draws the noise of the round."""

        @hookimpl
        def crfl_accept_round(self, current: Round) -> bool:
            current.streams.generator("noise", round_number=current.number)
            return True

    with pytest.warns(extend.CrflWarning, match="'noise' is not drawn here: start it with 'aggregation'"):
        crfl_core.run(tiny(trackers=["curious"]), out=tmp_path / "run", plugins={"curious": Curious})
