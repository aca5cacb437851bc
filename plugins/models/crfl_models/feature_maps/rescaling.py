"""Feature maps that rescale inputs: to the unit ball, to the unit sphere, number by number, or not at all."""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from crfl_core.extend import BoundMap, FeatureMap


class BoundIdentity(BoundMap):
    """`x`."""

    lipschitz = 1.0

    def __init__(self, inputs: int) -> None:
        self.outputs = inputs

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., d) -> (..., d)."""
        return x

    def norm_bound(self, inputs: float) -> float:
        """Return the bound on the input."""
        return inputs


class Identity(FeatureMap):
    """The scaled input itself."""

    def bind(self, inputs: int) -> BoundMap:
        """Keep the number of features."""
        return BoundIdentity(inputs)


class BoundUnitBall(BoundMap):
    """`x / max(||x||, r)`: the projection on the ball of radius r, divided by r."""

    def __init__(self, inputs: int, radius: float) -> None:
        self.outputs = inputs
        self.lipschitz = 1.0 / radius
        self._radius = radius

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., d) -> (..., d)."""
        norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / norms.clamp(min=self._radius)

    def norm_bound(self, inputs: float) -> float:
        """Return 1, or less if all inputs lie inside the ball."""
        return min(1.0, inputs / self._radius)


class UnitBall(FeatureMap):
    """Scales inputs to norm at most 1 by `x / max(||x||, r)`; Lipschitz with constant 1/r.

    Projection on a ball does not increase distances, and division by r multiplies them by 1/r.
    """

    radius: float = Field(1.0, gt=0, description="r: inputs beyond this norm are put on the unit sphere")

    def bind(self, inputs: int) -> BoundMap:
        """Keep the number of features."""
        return BoundUnitBall(inputs, self.radius)


class BoundUnitSphere(BoundMap):
    """`x / ||x||`, and 0 for 0."""

    lipschitz = None

    def __init__(self, inputs: int) -> None:
        self.outputs = inputs

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., d) -> (..., d)."""
        norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.where(norms > 0, x / norms, x)

    def norm_bound(self, inputs: float) -> float:
        """Return 1, or 0 if all inputs are 0."""
        return 1.0 if inputs > 0 else 0.0


class UnitSphere(FeatureMap):
    """Scales every input to norm 1 by `x / ||x||`. Has no Lipschitz constant: small inputs turn by any angle.

    So there is no radius at the feature level, while the sample and client levels stand.
    """

    def bind(self, inputs: int) -> BoundMap:
        """Keep the number of features."""
        return BoundUnitSphere(inputs)


class BoundLogarithm(BoundMap):
    """`sign(x) log(1 + scale |x|)`, number by number."""

    def __init__(self, inputs: int, scale: float) -> None:
        self.outputs = inputs
        self.lipschitz = scale
        self._scale = scale

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., d) -> (..., d)."""
        return torch.copysign(torch.log1p(self._scale * x.abs()), x)

    def norm_bound(self, inputs: float) -> float:
        """Return the smaller of two bounds.

        One is by the slope at 0, the other by the largest number d times.
        """
        return min(self._scale * inputs, math.sqrt(self.outputs) * math.log1p(self._scale * inputs))


class Logarithm(FeatureMap):
    """Shortens large numbers, `sign(x) log(1 + scale |x|)`; Lipschitz with constant `scale`.

    The slope is largest at 0, where it is `scale`. Behind `scattering`, whose outputs differ by orders of magnitude,
    it lets weak textures count beside strong edges.
    """

    scale: float = Field(100.0, gt=0, description="what numbers are multiplied by")

    def bind(self, inputs: int) -> BoundMap:
        """Keep the number of features."""
        return BoundLogarithm(inputs, self.scale)
