"""Feature map `random-fourier`: a fixed non-linear map in front of a convex model."""

from __future__ import annotations

import math

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from crfl_core.extend import BoundMap, FeatureMap, OptionError, Streams


class BoundRandomFourier(BoundMap):
    """`(cos Vx, sin Vx) / sqrt(m)` for a matrix V of m frequencies."""

    def __init__(self, frequencies: Tensor) -> None:
        self._frequencies = frequencies
        pairs = len(frequencies)
        self.outputs = 2 * pairs
        self.lipschitz = float(torch.linalg.matrix_norm(frequencies, 2)) / math.sqrt(pairs)

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., inputs) -> (..., outputs)."""
        angles = x @ self._frequencies.to(x).T
        return torch.cat([angles.cos(), angles.sin()], dim=-1) / math.sqrt(len(self._frequencies))

    def norm_bound(self, inputs: float) -> float:  # noqa: ARG002 - whatever the input is
        """Return 1: every pair of cosine and sine has norm 1."""
        return 1.0


class RandomFourier(FeatureMap):
    """Pairs of random cosines and sines that approximate a Gaussian kernel (Rahimi and Recht, 2007).

    `phi(x) = (cos Vx, sin Vx) / sqrt(m)` with m = outputs / 2 frequencies, rows of V drawn from N(0, I / bandwidth^2).
    The norm is exactly 1; the Lipschitz constant is `||V||_op / sqrt(m)`, since a chord is shorter than its arc.
    """

    outputs: int = Field(1000, ge=2, description="number of features, even")
    bandwidth: float = Field(5.0, gt=0, description="distance over which the kernel falls off")
    seed: int = Field(0, ge=0, description="seed of the frequencies, which are public")

    def bind(self, inputs: int) -> BoundMap:
        """Draw the frequencies.

        They depend on the options alone and not on the run's seed.
        """
        if self.outputs % 2:
            raise OptionError("outputs", f"must be even, one cosine and one sine each, found {self.outputs}")
        generator = Streams(self.seed).generator("data/random-fourier")
        frequencies = generator.standard_normal((self.outputs // 2, inputs)) / self.bandwidth
        return BoundRandomFourier(torch.from_numpy(np.ascontiguousarray(frequencies)))
