"""Weak noise on the aggregate."""

from __future__ import annotations

import torch
from pydantic import Field

from crfl_core.extend import FixedStage, Mixing, RoundFacts


class WeakNoise(FixedStage):
    """Adds Gaussian noise to the aggregate (Sun et al., 2019: weak differential privacy).

    `u_i <- u_i + z` with one `z ~ N(0, std^2 I)` for all clients of a round, so that a rule whose weights sum to 1 adds
    it exactly once. It is there to blur a backdoor and much too small for a privacy guarantee; the noise that
    certificates rest on is `server.noise_std`.
    """

    std: float = Field(0.001, ge=0, description="standard deviation of the noise in every parameter")

    def mixing(self, facts: RoundFacts) -> Mixing:
        """Leave all updates unchanged and add the noise as an offset."""
        generator = facts.streams.generator("aggregation/weak-noise", round_number=facts.number)
        noise = torch.from_numpy(generator.standard_normal(facts.layout.size)).mul_(self.std)
        return Mixing(torch.ones(len(facts.clients), dtype=torch.float64), offset=noise)
