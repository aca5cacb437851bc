"""Norm bound: no update longer than a given norm."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from crfl_aggregators.geometry import norms, shrinkage
from crfl_core.extend import ClientUpdates, Dependence, Stage, StageResult, State


class NormBound(Stage):
    """Shrinks every update to at most a given norm (Sun et al., 2019).

    `u_i <- u_i min(1, bound / ||u_i||)`. With weight decay an honest update also grows with the model, so the bound
    promises nothing about what remains without the decay, and certificates that need a cap are refused: use
    `update-cap`.
    """

    depends: ClassVar[Dependence] = "own"
    bound: float = Field(1.0, gt=0, description="largest norm of an update, M")

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """Shrunk copies."""
        lengths = norms(updates.values)
        cap = torch.full_like(lengths, self.bound)
        factors = shrinkage(cap, lengths, updates.values)
        decays = bool((updates.round.clients.retention < 1).any())
        return StageResult(
            values=factors[:, None] * updates.values,
            mixing=factors,
            cap=None if decays else cap,
            state=state,
        )
