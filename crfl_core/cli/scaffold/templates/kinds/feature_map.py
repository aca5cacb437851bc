"""A feature map for crfl."""

from __future__ import annotations

import math

import torch
from crfl_core.extend import BoundMap, FeatureMap
from pydantic import Field
from torch import Tensor


class BoundSquash(BoundMap):
    """Map `tanh(slope x)` for inputs of a known size."""

    def __init__(self, inputs: int, slope: float) -> None:
        self.outputs = inputs
        self.lipschitz = slope  # tanh has slope 1 at most
        self._slope = slope

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., inputs) to (..., inputs)."""
        return torch.tanh(self._slope * x)

    def norm_bound(self, inputs: float) -> float:
        """Bound the output: at most slope times the input, and no coordinate above 1."""
        return min(self._slope * inputs, math.sqrt(self.outputs))


class MyPlugin(FeatureMap):
    """Squashes every feature by `tanh(slope x)`, so that no input is long.

    A certificate needs the Lipschitz constant and the norm bound of the map: both must be true for every input.
    """

    slope: float = Field(1.0, gt=0, description="slope at zero, the Lipschitz constant")

    def bind(self, inputs: int) -> BoundMap:
        """Return the map for inputs of this size."""
        return BoundSquash(inputs, self.slope)
