"""Server optimisers that break one promise each: the kit finds it, and says what to change."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from crfl_core.extend import FixedRate, OptimiserResult, Round, RoundFacts, ServerOptimiser, State
from crfl_core.testing import check_plugin


class Broken(ServerOptimiser):
    """A velocity, but for one thing."""

    how: str

    def step(self, aggregate: Tensor, current: Round, state: State) -> OptimiserResult:
        """What it does wrong."""
        before = state["velocity"] if state else torch.zeros_like(aggregate)
        velocity = 0.5 * before + aggregate
        wrong: dict[str, Any] = {
            "divides": lambda: OptimiserResult(1.0 / aggregate.norm()),
            "drifts": lambda: OptimiserResult(1.0, torch.ones_like(aggregate)),
            "backward": lambda: OptimiserResult(-0.5, 1.5 * aggregate),
            "writes": lambda: OptimiserResult(1.0, before.add_(1.0), {"velocity": velocity}),
            "aliases": lambda: OptimiserResult(1.0, 0.5 * before, {"velocity": aggregate}),
            "remembers": lambda: OptimiserResult(float(next(ASKED))),
            "precise": lambda: OptimiserResult(1.0, 0.5 * before.double(), {"velocity": velocity.double()}),
        }
        found: OptimiserResult = wrong[self.how]()
        return found


ASKED = itertools.count(1)


class Forgetful(FixedRate):
    """A rate that depends on how often it was asked."""

    def rate(self, facts: RoundFacts) -> float:
        """Half of what it was before."""
        return 0.5 ** next(ASKED)


@pytest.mark.parametrize(
    ("how", "check"),
    [
        ("divides", "answers_every_aggregate"),
        ("drifts", "nothing_moves_nothing"),
        ("backward", "the_model_moves_along_the_aggregate"),
        ("writes", "step_keeps_inputs"),
        ("aliases", "step_keeps_inputs"),
        ("remembers", "memory_survives_a_checkpoint"),
        ("precise", "answers_every_aggregate"),
    ],
)
def test_a_broken_promise_is_found(how: str, check: str) -> None:
    failed = {result.check: result.message for result in check_plugin(Broken(how=how)) if result.status == "failed"}
    assert check in failed
    assert "To fix it:" in failed[check]


def test_a_rate_that_changes_when_it_is_asked_again_is_found() -> None:
    failed = {result.check for result in check_plugin(Forgetful()) if result.status == "failed"}
    assert {"rate_is_the_same_when_asked_again", "answers_are_repeatable"} <= failed
