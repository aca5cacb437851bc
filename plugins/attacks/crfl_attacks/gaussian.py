"""Noise instead of an update."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from crfl_attacks.byzantine import Byzantine
from crfl_core.extend import ClientUpdates


class Gaussian(Byzantine):
    """Submits independent Gaussian noise (Blanchard et al., 2017)."""

    std: float = Field(1.0, gt=0, description="standard deviation in every parameter")

    def direction(self, honest: ClientUpdates, own: Tensor) -> Tensor:
        """A fresh draw for every attacker and round."""
        generator = honest.round.streams.generator("attack/gaussian", round_number=honest.round.number)
        return self.std * torch.from_numpy(generator.standard_normal(tuple(own.shape))).to(own)
