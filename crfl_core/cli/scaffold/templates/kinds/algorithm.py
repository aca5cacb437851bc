"""An algorithm of local training for crfl."""

from __future__ import annotations

import torch
from crfl_core.extend import LocalAlgorithm, LocalStep, State, StepDirection
from pydantic import Field


class MyPlugin(LocalAlgorithm):
    """SGD with steps of averaged length: every direction is as long as the mean gradient so far.

    Of such an algorithm no certificate knows what honest updates are. If yours is SGD with a pull toward the broadcast
    model, derive from ProximalAlgorithm and name its weight: then the core makes the steps, and certificates hold.
    """

    memory: float = Field(0.9, ge=0, lt=1, description="what a step keeps of the mean length before it")

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        """Return the direction. Tensors are (R, n, P), R models of n clients: work along the last axis only."""
        length = torch.linalg.vector_norm(step.gradient, dim=-1, keepdim=True)
        mean = self.memory * state["mean"] + (1.0 - self.memory) * length if state else length
        direction = step.gradient * (mean / length.clamp(min=torch.finfo(length.dtype).tiny))
        return StepDirection(direction, {"mean": mean})
