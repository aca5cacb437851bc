"""Answers of steps that break their contract: named with plugin, file and line, in the round in which they come."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
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
    PluginFailure,
    Round,
    RoundFacts,
    RuleResult,
    RunContext,
    Stage,
    StageResult,
    State,
    Tracker,
    hookimpl,
)
from tests.oracle import federation_of, played, tiny


def even(values: Tensor) -> Tensor:
    """The weights of a mean."""
    return torch.full((len(values),), 1 / len(values), dtype=torch.float64)


class Rule(Aggregator):
    """A mean that answers with something else in round 2."""

    what: str

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        weights = even(updates.values)
        mean = weights.to(updates.values) @ updates.values
        honest = RuleResult(mean, weights, state={"last": mean})
        if updates.round.number < 2:
            return honest
        found: RuleResult = ANSWERS[self.what][0](updates, state, honest)
        return found


class Staged(Stage):
    """Hands updates on as they are, and answers with something else in round 2."""

    what: str

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        honest = StageResult(updates.values.clone(), torch.ones_like(updates.values[:, 0]))
        if updates.round.number < 2:
            return honest
        found: StageResult = STAGED[self.what][0](updates, state, honest)
        return found


Answer = Callable[[ClientUpdates, State, Any], Any]


def result(honest: RuleResult, **changes: Any) -> RuleResult:
    """The honest answer with something else in it."""
    return RuleResult(**(vars(honest) | changes))


def stage_result(honest: StageResult, **changes: Any) -> StageResult:
    """The honest answer with something else in it."""
    return StageResult(**(vars(honest) | changes))


def after(change: Callable[[ClientUpdates, State], object]) -> Answer:
    """The honest answer, after something was changed."""

    def answer(updates: ClientUpdates, state: State, honest: object) -> object:
        change(updates, state)
        return honest

    return answer


CHANGED = "changed what it was given: work on a copy"
CHANGES: dict[str, tuple[Answer, str]] = {
    "scales the updates": (after(lambda updates, _: updates.values.mul_(0.5)), CHANGED),
    "writes one number": (after(lambda updates, _: updates.values[3, 4].fill_(0.0)), CHANGED),
    "moves the model": (after(lambda updates, _: updates.round.start.add_(1.0)), CHANGED),
    "moves the model through NumPy": (after(lambda updates, _: updates.round.start.numpy().fill(1.0)), CHANGED),
    "gives itself samples": (after(lambda updates, _: updates.round.clients.samples.fill(7)), CHANGED),
    "gives others a rate": (
        after(lambda updates, _: updates.round.clients.learning_rate.__setitem__(2, 9.0)),
        CHANGED,
    ),
}
ANSWERS: dict[str, tuple[Answer, str]] = {
    "nothing": (lambda *_: None, "must return a RuleResult, found NoneType"),
    "a tensor": (lambda *args: args[2].update, "must return a RuleResult, found Tensor"),
    "a stage's answer": (
        lambda updates, *_: StageResult(updates.values.clone(), torch.ones(8)),
        "must return a RuleResult, found StageResult",
    ),
    "a list as state": (
        lambda *args: result(args[2], state=[1]),
        "must return `state` as a mapping of tensors, found list",
    ),
    "a number in the state": (
        lambda *args: result(args[2], state={"rounds": 3}),
        "state['rounds'] must be a tensor, found int",
    ),
    "an array in the state": (
        lambda *args: result(args[2], state={"last": np.zeros(3)}),
        "state['last'] must be a tensor, found ndarray",
    ),
    "a state without names": (
        lambda *args: result(args[2], state={1: torch.zeros(3)}),
        "state[1] must be a tensor, found Tensor",
    ),
    "no update": (
        lambda *args: result(args[2], update=None),
        "returned update as NoneType: expected a torch.Tensor of shape (650,)",
    ),
    "lists": (
        lambda *args: result(args[2], update=args[2].update.tolist()),
        "returned update as list: expected a torch.Tensor",
    ),
    "weights of others": (
        lambda *args: result(args[2], weights=torch.ones(3) / 3),
        "returned weights of shape (3,) for updates (8, 650): expected (8,)",
    ),
    "weights of NumPy": (
        lambda *args: result(args[2], weights=args[2].weights.numpy()),
        "returned weights as ndarray: expected a torch.Tensor of shape (8,)",
    ),
    "weights with a graph": (
        lambda *args: result(args[2], weights=args[2].weights.requires_grad_()),
        "returned weights with requires_grad: end with weights.detach()",
    ),
    "a state with a graph": (
        lambda *args: result(args[2], state={"last": torch.zeros(3, requires_grad=True)}),
        "returned state['last'] with requires_grad: end with state['last'].detach()",
    ),
    "full weights with a graph": (
        lambda updates, _, honest: result(
            honest, full_weights=lambda: honest.weights[:, None].to(updates.values).expand(8, 650).requires_grad_()
        ),
        "returned full_weights with requires_grad",
    ),
    "words as notes": (
        lambda *args: result(args[2], notes={"mood": "good"}),
        "notes['mood'] must be a finite number, found 'good'",
    ),
    "notes that are no numbers": (
        lambda *args: result(args[2], notes={"gap": float("nan")}),
        "notes['gap'] must be a finite number, found nan",
    ),
    # Continuations share the state of the round that they start from: who writes into it writes into theirs.
    "a state that it has changed": (after(lambda _, state: state["last"].zero_()), CHANGED),
    **CHANGES,
}
STAGED: dict[str, tuple[Answer, str]] = {
    "nothing": (lambda *_: None, "must return a StageResult, found NoneType"),
    "a rule's answer": (
        lambda updates, *_: RuleResult(updates.values[0].clone(), even(updates.values)),
        "must return a StageResult, found RuleResult",
    ),
    "no values": (lambda *args: stage_result(args[2], values=None), "returned values as NoneType"),
    "a number": (
        lambda *args: stage_result(args[2], values=torch.ones(())),
        "returned values of shape () for updates (8, 650)",
    ),
    "no mixing": (lambda *args: stage_result(args[2], mixing=None), "returned mixing as NoneType"),
    "a number in the state": (
        lambda *args: stage_result(args[2], state={"rounds": 3}),
        "state['rounds'] must be a tensor, found int",
    ),
    **CHANGES,
}
RULE_LINE = Rule.aggregate.__code__.co_firstlineno
STAGE_LINE = Staged.transform.__code__.co_firstlineno


def rounds_until(config: dict[str, Any], plugins: dict[str, type[Plugin]]) -> tuple[int, str]:
    """How many rounds were played before a plugin was named, and what was said."""
    finished: list[int] = []

    class Counting(Tracker):
        """Counts finished rounds."""

        @hookimpl
        def crfl_round_started(self, current: Round) -> None:
            finished.append(current.number)

    federation = federation_of(config | {"trackers": ["counting"]}, plugins | {"counting": Counting})
    with pytest.raises(PluginFailure) as caught:
        played(federation)
    return len(finished), str(caught.value)


@pytest.mark.parametrize("what", ANSWERS)
def test_a_rule_that_answers_with_something_else_is_named_with_its_file_and_line(what: str) -> None:
    config = tiny(attack="none", aggregation=[{"type": "rule", "what": what}])
    number, message = rounds_until(config, {"rule": Rule})
    assert number == 2  # in the round in which it happens, not when a checkpoint is written
    assert message.startswith("aggregator 'rule' of (this process)")
    assert ANSWERS[what][1] in message
    if "returned" not in message:
        assert f"aggregate() ({__file__}:{RULE_LINE})" in message


@pytest.mark.parametrize("what", STAGED)
def test_a_stage_that_answers_with_something_else_is_named_with_its_file_and_line(what: str) -> None:
    config = tiny(attack="none", aggregation=[{"type": "staged", "what": what}, {"type": "fedavg"}])
    number, message = rounds_until(config, {"staged": Staged})
    assert number == 2
    assert message.startswith("aggregator 'staged' of (this process)")
    assert STAGED[what][1] in message
    if "returned" not in message:
        assert f"transform() ({__file__}:{STAGE_LINE})" in message


class Weights(LinearAggregator):
    """Answers with what it is told."""

    what: str

    def weights(self, clients: Clients) -> Tensor:
        found: Tensor = WEIGHTS[self.what][0](clients)
        return found


class Caps(CapStage):
    """Answers with what it is told."""

    what: str

    def caps(self, clients: Clients) -> Tensor:
        found: Tensor = CAPS[self.what][0](clients)
        return found


class Mixes(FixedStage):
    """Answers with what it is told."""

    what: str

    def mixing(self, facts: RoundFacts) -> Mixing:
        found: Mixing = MIXINGS[self.what][0](facts)
        return found


def taken(clients: Clients) -> Tensor:
    """The samples of all clients, of which none are left."""
    clients.samples[:] = 1
    return torch.ones(len(clients)) / len(clients)


WEIGHTS: dict[str, tuple[Callable[[Clients], Any], str]] = {
    "nothing": (lambda _: None, "must return a Tensor, found NoneType"),
    "an array": (lambda clients: np.ones(len(clients)), "must return a Tensor, found ndarray"),
    "too few": (lambda _: torch.ones(3), "must return 8 numbers, finite: found shape (3,)"),
    "a row": (lambda clients: torch.ones(1, len(clients)), "must return 8 numbers, finite: found shape (1, 8)"),
    "not finite": (lambda clients: torch.ones(len(clients)) / 0, "must return 8 numbers, finite: found others"),
    "others' samples": (taken, CHANGED),
}
CAPS: dict[str, tuple[Callable[[Clients], Any], str]] = {
    "nothing": (lambda _: None, "must return a Tensor, found NoneType"),
    "too few": (lambda _: torch.ones(3), "must return 8 numbers, not negative: found shape (3,)"),
    "one": (lambda _: torch.ones(()), "must return 8 numbers, not negative: found shape ()"),
    "negative": (lambda clients: -torch.ones(len(clients)), "must return 8 numbers, not negative: found others"),
    "not a number": (lambda clients: torch.ones(len(clients)) * torch.nan, "not negative: found others"),
    "others' samples": (taken, CHANGED),
}
MIXINGS: dict[str, tuple[Callable[[RoundFacts], Any], str]] = {
    "nothing": (lambda _: None, "must return a Mixing, found NoneType"),
    "a matrix": (lambda _: torch.eye(8), "must return a Mixing, found Tensor"),
    "no matrix": (lambda _: Mixing(None), "returned matrix as NoneType"),  # type: ignore[arg-type]
    "a number": (lambda _: Mixing(torch.ones(())), "returned matrix of shape ()"),
    "too few columns": (lambda _: Mixing(torch.eye(5)), "returned matrix of shape (5, 5) for updates (8, 650)"),
    "a short offset": (lambda _: Mixing(torch.ones(8), torch.ones(5)), "returned offset of shape (5,)"),
    "not finite": (lambda _: Mixing(torch.ones(8) / 0), "returned numbers that are not finite"),
    "an infinite offset": (
        lambda facts: Mixing(torch.ones(8), torch.full((facts.layout.size,), torch.inf)),
        "returned numbers that are not finite",
    ),
}


@pytest.mark.parametrize("server", [{}, {"bad_update": "drop"}], ids=["streamed", "gathered"])
@pytest.mark.parametrize(
    ("step", "what", "sentence"),
    [
        *(("weights", what, sentence) for what, (_, sentence) in WEIGHTS.items()),
        *(("caps", what, sentence) for what, (_, sentence) in CAPS.items()),
        *(("mixes", what, sentence) for what, (_, sentence) in MIXINGS.items()),
    ],
)
def test_steps_that_see_no_updates_are_checked_as_well(
    step: str, what: str, sentence: str, server: dict[str, Any]
) -> None:
    rest = [] if step == "weights" else [{"type": "fedavg"}]
    settings = {"clip_norm": 4.0, "noise_std": 0.02, **server}
    config = tiny(attack="none", aggregation=[{"type": step, "what": what}, *rest], server=settings)
    number, message = rounds_until(config, {"weights": Weights, "caps": Caps, "mixes": Mixes})
    assert number == 1
    assert message.startswith(f"aggregator {step!r} of (this process)")
    assert sentence in message


class Meddling(Tracker):
    """Changes what a hook is handed."""

    hook: str

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        if self.hook == "crfl_run_started":
            run.data.y.zero_()

    @hookimpl
    def crfl_round_started(self, current: Round) -> None:
        if self.hook == "crfl_round_started":
            current.start.mul_(0.5).add_(0.01)

    @hookimpl
    def crfl_effective_weights(self, aggregate: RuleResult) -> None:
        if self.hook == "crfl_effective_weights":
            aggregate.update.mul_(2.0)

    @hookimpl
    def crfl_accept_round(self, candidate: Tensor) -> bool:
        if self.hook == "crfl_accept_round":
            candidate.numpy()[:] *= 3.0
        return True


@pytest.mark.parametrize("hook", ["crfl_round_started", "crfl_effective_weights", "crfl_accept_round"])
def test_a_hook_that_changes_what_it_is_handed_stops_the_run(hook: str) -> None:
    """Also that of a tracker, whose mistakes are otherwise forgiven: the model is not what it would be."""
    config = tiny(trackers=[{"type": "meddling", "hook": hook}])
    place = f"{__file__}:{getattr(Meddling, hook).__code__.co_firstlineno}"
    message = f"tracker 'meddling' of (this process): {hook} ({place}) {CHANGED}"
    with pytest.raises(PluginFailure, match=re.escape(message)):
        played(federation_of(config, {"meddling": Meddling}))


def test_a_tracker_that_changes_nothing_is_left_alone() -> None:
    config = tiny(trackers=[{"type": "meddling", "hook": "none"}])
    assert len(played(federation_of(config, {"meddling": Meddling}))) == 4
