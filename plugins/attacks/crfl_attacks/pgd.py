"""A backdoor that never leaves a ball around the global model."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from crfl_attacks.model_replacement import ModelReplacement
from crfl_core.extend import State


class Pgd(ModelReplacement):
    """Backdoor by projected gradient descent (Sun et al., 2019; Wang et al., 2020).

    After every local step attackers project their model on the ball of radius `radius` around the model of the round,
    so that a defence that bounds norms sees nothing unusual. `scale` multiplies the result, which leaves the ball.
    """

    radius: float = Field(1.0, gt=0, description="largest distance from the model of the round")

    def after_step(self, weights: Tensor, start: Tensor, state: State) -> Tensor:  # noqa: ARG002 - remembers nothing
        """The nearest model of the ball."""
        away = weights - start
        distance: Tensor = torch.linalg.vector_norm(away, dim=-1, keepdim=True)
        return start + away / (distance / self.radius).clamp(min=1.0)
