"""A backdoor that is trained to look like an honest update."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from crfl_attacks.model_replacement import ModelReplacement
from crfl_core.extend import State


class ConstrainAndScale(ModelReplacement):
    """Model replacement that evades anomaly detection (Bagdasaryan et al., 2020).

    Attackers minimise `alpha L_class + (1 - alpha) L_ano` on their poisoned batches, where L_ano is the Euclidean
    distance to the model of the round, and multiply what they trained by `scale`.
    """

    alpha: float = Field(0.7, gt=0, le=1, description="weight of the task; the rest is the weight of staying close")

    def local_gradient(self, gradient: Tensor, weights: Tensor, start: Tensor, state: State) -> Tensor:  # noqa: ARG002
        """`alpha` times the gradient of the task plus `1 - alpha` times the unit vector away from the start."""
        away = weights - start
        distance: Tensor = torch.linalg.vector_norm(away, dim=-1, keepdim=True)
        tiny = torch.finfo(away.dtype).tiny  # at the start itself 0 is a subgradient
        return (self.alpha * gradient).addcdiv_(away, distance.clamp(min=tiny), value=1.0 - self.alpha)
