"""Algorithms of local training that are broken in one way each."""

from __future__ import annotations

import itertools
from typing import ClassVar

import pytest
import torch
from pydantic import PrivateAttr

from crfl_core.extend import (
    LocalAlgorithm,
    LocalRound,
    LocalStep,
    Plugin,
    PluginError,
    ProximalAlgorithm,
    State,
    StatefulAlgorithm,
    StepDirection,
)
from tests.testing.support import assert_fails, checks_of


class Coarse(LocalAlgorithm):
    """Works in single precision."""

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        return StepDirection(step.gradient.float())


class Dividing(LocalAlgorithm):
    """Divides by what it has not seen yet."""

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        return StepDirection(step.gradient / state.get("length", torch.zeros(())), {"length": step.gradient.norm()})


class Moving(LocalAlgorithm):
    """Makes the step itself."""

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        step.parameters.sub_(step.gradient)
        return StepDirection(torch.zeros_like(step.gradient))


class Sociable(LocalAlgorithm):
    """Follows the mean of all clients."""

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        return StepDirection(step.gradient.mean(1, keepdim=True).expand_as(step.gradient))


class Scaling(LocalAlgorithm):
    """Divides by the largest number of all clients, if it is large."""

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        return StepDirection(step.gradient / step.gradient.abs().nan_to_num().max().clamp(min=1e2))


class Startled(LocalAlgorithm):
    """Makes shorter steps ever after it has seen one long gradient."""

    _startled: list[bool] = PrivateAttr(default_factory=list)

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        if bool((step.gradient.norm(dim=-1) > 1e2).any()):
            self._startled.append(True)
        return StepDirection(step.gradient / (1.0 + bool(self._startled)))


class Remembering(LocalAlgorithm):
    """Keeps its velocity for the next round."""

    _velocity: dict[torch.Size, torch.Tensor] = PrivateAttr(default_factory=dict)

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        before = self._velocity.get(step.gradient.shape, torch.zeros_like(step.gradient))
        self._velocity[step.gradient.shape] = 0.9 * before + step.gradient
        return StepDirection(self._velocity[step.gradient.shape])


class Forgetful(StatefulAlgorithm):
    """Keeps something else than it says."""

    remembers: ClassVar[tuple[str, ...]] = ("variate",)

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        return StepDirection(step.gradient - step.memory["variate"])

    def remember(self, finished: LocalRound) -> State:
        return {"other": finished.parameters}


class Unguarded(Forgetful):
    """Divides by the way of a client that made no step."""

    def remember(self, finished: LocalRound) -> State:
        return {"variate": (finished.start - finished.parameters) / finished.distance}


class Nameless(Forgetful):
    """Names nothing."""

    remembers: ClassVar[tuple[str, ...]] = ()


class Repelling(ProximalAlgorithm):
    """Pushes away from the start."""

    def proximal_weight(self) -> float:
        return -0.1


class Changing(ProximalAlgorithm):
    """Never says the same."""

    _count: itertools.count[int] = PrivateAttr(default_factory=itertools.count)

    def proximal_weight(self) -> float:
        return 0.01 * next(self._count)


BROKEN: dict[str, list[tuple[Plugin, str]]] = {
    "directions_are_of_the_models_precision": [
        (Coarse(), "of torch.float64, found"),
        (Dividing(), "guard divisions"),
        (Moving(), "changed what it was given"),
    ],
    "clients_and_models_do_not_mix_directions": [
        (Sociable(), "work along the last axis only"),
        (Scaling(), "without a sum, norm or maximum"),
    ],
    "every_round_begins_anew": [
        (Remembering(), "return what you keep in `state`"),
        (Startled(), "return what you keep in `state`"),
    ],
    "keeps_a_vector_of_the_model_under_each_name": [
        (Forgetful(), "must return ['variate'], found ['other']"),
        (Unguarded(), "`distance` is 0 without steps"),
        (Nameless(), "remembers must be a tuple of words"),
    ],
    "declares_proximal_weight": [(Repelling(), "at least 0, found -0.1"), (Changing(), "derive it from options alone")],
}
EXAMPLES = [(check, plugin, word) for check, examples in BROKEN.items() for plugin, word in examples]


@pytest.mark.parametrize(
    ("check", "plugin", "word"), EXAMPLES, ids=[type(plugin).__name__ for _, plugin, _ in EXAMPLES]
)
def test_a_broken_algorithm_is_told_what_to_fix(check: str, plugin: Plugin, word: str) -> None:
    assert_fails(plugin, check, word)


def test_every_check_has_an_algorithm_that_fails_it() -> None:
    assert set(BROKEN) == checks_of(LocalAlgorithm, ProximalAlgorithm, StatefulAlgorithm)


def test_the_core_makes_the_steps_of_a_proximal_algorithm() -> None:
    with pytest.raises(PluginError, match=r"replaces ProximalAlgorithm\.direction, which is final"):

        class Free(ProximalAlgorithm):
            """Would like both."""

            def proximal_weight(self) -> float:
                return 0.0

            def direction(self, step: LocalStep, state: State) -> StepDirection:  # type: ignore[misc]
                return StepDirection(step.gradient)
