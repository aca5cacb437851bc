"""A stage of an aggregation chain for crfl."""

from __future__ import annotations

import torch
from crfl_core.extend import ClientUpdates, Stage, StageResult, State
from pydantic import Field


class MyPlugin(Stage):
    """Shortens updates to the length of the median update, times `factor`.

    `u_i <- u_i min(1, factor m / ||u_i||)` with m the median of all lengths. To name a length that does not depend on
    the updates derive from CapStage, to mix clients in a fixed way from FixedStage: certificates can use those.
    """

    factor: float = Field(2.0, gt=0, description="how much longer than the median an update may be")

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """Return shortened copies, and their factors as the diagonal of the mixing matrix."""
        lengths = torch.linalg.vector_norm(updates.values.double(), dim=1)
        longest = self.factor * lengths.median()
        factors = torch.where(lengths > longest, longest / lengths, 1.0).to(updates.values)
        return StageResult(values=factors[:, None] * updates.values, mixing=factors, state=state)
