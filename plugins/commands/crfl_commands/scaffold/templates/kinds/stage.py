"""A stage of an aggregation chain for crfl."""

from __future__ import annotations

from typing import ClassVar

import torch
from crfl_core.extend import ClientUpdates, Dependence, Stage, StageResult, State
from pydantic import Field

ROUNDED_DOWN = 1.0 - 1e-6
"""Keeps what was shortened below the bound, whatever single precision does to the last digit."""


class MyPlugin(Stage):
    """Shortens updates that are longer than `bound` to that length.

    `u_i <- u_i min(1, bound / ||u_i||)`. The factor of a client depends on its own update only.
    """

    depends: ClassVar[Dependence] = "own"

    bound: float = Field(1.0, gt=0, description="largest norm of an update that leaves this stage")

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """Shortened copies, and the factor of each as the diagonal of the mixing matrix."""
        lengths = torch.linalg.vector_norm(updates.values.double(), dim=1)
        factors = torch.where(lengths > self.bound, self.bound / lengths * ROUNDED_DOWN, 1.0).to(updates.values)
        # With weight decay a cap must bound what remains of an update without the decay, which this stage does not.
        decays = bool((updates.round.clients.retention < 1).any())
        return StageResult(
            values=factors[:, None] * updates.values,
            mixing=factors,
            cap=None if decays else torch.full_like(lengths, self.bound),
            state=state,
        )
