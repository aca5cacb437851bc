"""SGD with momentum, within a round."""

from __future__ import annotations

from pydantic import Field

from crfl_core.extend import LocalAlgorithm, LocalStep, State, StepDirection


class Momentum(LocalAlgorithm):
    """SGD with heavy-ball momentum (Polyak, 1964): `v <- beta v + g`, `w <- w - eta v`, with v = 0 in every round."""

    beta: float = Field(0.9, ge=0, lt=1, description="what a step keeps of the velocity before it")

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        """The velocity."""
        velocity = step.gradient if not state else self.beta * state["velocity"] + step.gradient
        return StepDirection(velocity, {"velocity": velocity})
