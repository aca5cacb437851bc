"""Feature map `group-norm`: every group of channels is centred and scaled by itself."""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from crfl_core.extend import BoundMap, ImageMap, OptionError


class BoundGroupNorm(BoundMap):
    """`(x - mean) / sqrt(variance + epsilon)` in each group, over the root of the number of features."""

    lipschitz: float

    def __init__(self, inputs: int, groups: int, epsilon: float) -> None:
        self.outputs = inputs
        self.lipschitz = 1 / math.sqrt(epsilon * inputs)
        self._groups = groups
        self._epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., d) -> (..., d)."""
        grouped = x.unflatten(-1, (self._groups, -1))
        variance, mean = torch.var_mean(grouped, -1, correction=0, keepdim=True)
        normed: Tensor = (grouped - mean) / (self.outputs * (variance + self._epsilon)).sqrt()
        return normed.flatten(-2)

    def norm_bound(self, inputs: float) -> float:
        """Return 1, or less if all inputs are short."""
        return min(1.0, self.lipschitz * inputs)


class GroupNorm(ImageMap):
    """Centres and scales every group of channels of a sample by its own mean and variance, with norm at most 1.

    In a group of n of all d features, `(x - mean) / sqrt(d (variance + epsilon))` has a squared norm of at most n / d,
    so the whole is at most 1 long. Its derivative is the centring, less a part of it, over
    `sqrt(d (variance + epsilon))`: the Lipschitz constant is `1 / sqrt(d epsilon)`. Behind `scattering` with 8 angles,
    27 groups of 3 channels are good, with 4 angles 5 groups of 5.
    """

    groups: int = Field(27, ge=1, description="number of groups of neighbouring channels, all of one size")
    epsilon: float = Field(1e-4, gt=0, description="added to each variance")

    def bind_image(self, shape: tuple[int, ...]) -> BoundMap:
        """Keep the shape."""
        channels, height, width = shape
        if channels % self.groups:
            raise OptionError(
                "groups",
                f"{channels} x {height} x {width} numbers have {channels} channels, which cannot be split into "
                f"{self.groups} groups of one size: choose a divisor, or put 'scattering' in front",
            )
        return BoundGroupNorm(math.prod(shape), self.groups, self.epsilon)
