"""Inputs of norm exactly 1."""

from __future__ import annotations

import torch
from torch import Tensor

from crfl_core.extend import BoundMap, FeatureMap


class BoundUnitSphere(BoundMap):
    """`x / ||x||`, and 0 for 0."""

    lipschitz = None

    def __init__(self, inputs: int) -> None:
        self.outputs = inputs

    def __call__(self, x: Tensor) -> Tensor:
        """(..., d) -> (..., d)."""
        norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.where(norms > 0, x / norms, x)

    def norm_bound(self, inputs: float) -> float:
        """1, or 0 if all inputs are 0."""
        return 1.0 if inputs > 0 else 0.0


class UnitSphere(FeatureMap):
    """Scales every input to norm 1 by `x / ||x||`. Has no Lipschitz constant: small inputs turn by any angle.

    So there is no radius at the feature level, while the sample and client levels stand.
    """

    def bind(self, inputs: int) -> BoundMap:
        """Keeps the number of features."""
        return BoundUnitSphere(inputs)
