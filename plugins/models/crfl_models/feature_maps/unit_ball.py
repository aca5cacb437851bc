"""Inputs of norm at most 1."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from crfl_core.extend import BoundMap, FeatureMap


class BoundUnitBall(BoundMap):
    """`x / max(||x||, r)`: the projection on the ball of radius r, divided by r."""

    def __init__(self, inputs: int, radius: float) -> None:
        self.outputs = inputs
        self.lipschitz = 1.0 / radius
        self._radius = radius

    def __call__(self, x: Tensor) -> Tensor:
        """(..., d) -> (..., d)."""
        norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / norms.clamp(min=self._radius)

    def norm_bound(self, inputs: float) -> float:
        """1, or less if all inputs lie inside the ball."""
        return min(1.0, inputs / self._radius)


class UnitBall(FeatureMap):
    """Scales inputs to norm at most 1 by `x / max(||x||, r)`; Lipschitz with constant 1/r.

    Projection on a ball does not increase distances, and division by r multiplies them by 1/r.
    """

    radius: float = Field(1.0, gt=0, description="r: inputs beyond this norm are put on the unit sphere")

    def bind(self, inputs: int) -> BoundMap:
        """Keeps the number of features."""
        return BoundUnitBall(inputs, self.radius)
