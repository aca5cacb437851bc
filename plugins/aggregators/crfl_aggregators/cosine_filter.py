"""Cosine filter: updates that point elsewhere than most are left out."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from crfl_aggregators.geometry import SAME_ANGLE, Array, cosines, row_blocks
from crfl_aggregators.selection import selected
from crfl_core.extend import ClientUpdates, Stage, StageResult, State


class CosineFilter(Stage):
    """Leaves out updates whose direction differs from that of most others (after Munoz-Gonzalez et al., 2019).

    Keeps client i if `median_{j != i} cos(u_i, u_j) >= threshold`. The paper compares with the current aggregate, which
    attackers move along; the median over the others needs no aggregate and withstands any minority. If nobody
    reaches the threshold, those who come nearest to it are kept.
    """

    threshold: float = Field(0.0, ge=-1, le=1, description="least cosine of the angle to the typical other client")

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """The updates that agree with most."""
        agreement = typical_cosines(cosines(updates.values))
        needed = min(self.threshold, agreement.max()) - SAME_ANGLE
        return selected(updates, np.flatnonzero(agreement >= needed), state)


def typical_cosines(similarity: Array) -> Array:
    """The median of each row without its diagonal entry; 1 for a client on its own."""
    clients = len(similarity)
    if clients == 1:
        return np.ones(1)
    found = []
    for rows in row_blocks(similarity):
        others = np.arange(clients) != np.arange(clients)[rows, None]
        found.append(np.median(similarity[rows][others].reshape(-1, clients - 1), axis=1))
    return np.concatenate(found)
