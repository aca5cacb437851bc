"""Norm bound: no update longer than a given norm."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from crfl_core.extend import CapStage, Clients


class NormBound(CapStage):
    """Shrinks every update to at most a given norm (Sun et al., 2019).

    `u_i <- u_i min(1, bound / ||u_i||)`. With weight decay an honest update also grows with the model, so the bound
    promises nothing about what remains without the decay, and certificates that need a cap are refused: use
    `update-cap`.
    """

    centre: ClassVar[Literal["decay", "zero"]] = "zero"

    bound: float = Field(1.0, gt=0, description="largest norm of an update, M")

    def caps(self, clients: Clients) -> Tensor:
        """The same for everybody."""
        return torch.full((len(clients),), self.bound, dtype=torch.float64)
