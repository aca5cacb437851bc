"""Weak noise on the aggregate."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from crfl_core.extend import ClientUpdates, Dependence, Stage, StageResult, State


class WeakNoise(Stage):
    """Adds Gaussian noise to the aggregate (Sun et al., 2019: weak differential privacy).

    `u_i <- u_i + z` with one `z ~ N(0, std^2 I)` for all clients of a round, so that a rule whose weights sum to 1 adds
    it exactly once. It is there to blur a backdoor and much too small for a privacy guarantee; the noise that
    certificates rest on is `server.noise_std`.
    """

    depends: ClassVar[Dependence] = "fixed"
    std: float = Field(0.001, ge=0, description="standard deviation of the noise in every parameter")

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """Shifted copies; the noise is the offset."""
        values, current = updates.values, updates.round
        generator = current.streams.generator("aggregation/weak-noise", round_number=current.number)
        dtype = np.float64 if values.dtype == torch.float64 else np.float32
        drawn = torch.from_numpy(generator.standard_normal(values.shape[1], dtype=dtype))
        noise = drawn.mul_(self.std).to(values.device)
        return StageResult(
            values=values + noise,
            mixing=values.new_ones(len(values)),
            offset=noise.expand_as(values),
            state=state,
        )
