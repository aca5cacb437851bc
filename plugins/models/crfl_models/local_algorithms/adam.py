"""Adam, within a round."""

from __future__ import annotations

import torch
from pydantic import Field

from crfl_core.extend import LocalAlgorithm, LocalStep, State, StepDirection


class Adam(LocalAlgorithm):
    """Adam (Kingma & Ba, 2015) with its bias corrections; both averages begin anew in every round."""

    beta1: float = Field(0.9, ge=0, lt=1, description="what a step keeps of the mean of gradients")
    beta2: float = Field(0.999, ge=0, lt=1, description="what a step keeps of the mean of their squares")
    epsilon: float = Field(1e-8, gt=0, description="added to the root, against division by zero")

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        """`m / (sqrt(v) + epsilon)` with corrected averages m of gradients and v of their squares."""
        gradient = step.gradient
        mean, square = (state.get(name, torch.zeros_like(gradient)) for name in ("mean", "square"))
        mean = self.beta1 * mean + (1.0 - self.beta1) * gradient
        square = self.beta2 * square + (1.0 - self.beta2) * gradient.square()
        corrected = mean / (1.0 - self.beta1**step.number)
        root = (square / (1.0 - self.beta2**step.number)).sqrt()
        return StepDirection(corrected / (root + self.epsilon), {"mean": mean, "square": square})
