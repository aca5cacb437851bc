"""Noise instead of an update."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from crfl_attacks.byzantine import Byzantine
from crfl_core.extend import AttackerView, Knowledge


class Gaussian(Byzantine):
    """Submits independent Gaussian noise (Blanchard et al., 2017)."""

    knowledge: ClassVar[Knowledge] = "own"

    std: float = Field(1.0, gt=0, description="standard deviation in every parameter")

    def direction(self, known: AttackerView) -> Tensor:
        """A fresh draw for every attacker and round."""
        generator = known.round.streams.generator("attack/gaussian", round_number=known.round.number)
        return self.std * torch.from_numpy(generator.standard_normal(tuple(known.own_updates.shape))).to(
            known.own_updates
        )
