"""Nearest-neighbour mixing: every update becomes the mean of those nearest to it."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from crfl_aggregators.geometry import column_blocks, pairwise_distances
from crfl_aggregators.selection import ranking
from crfl_core.extend import Clients, ClientUpdates, OptionError, Stage, StageResult, State


class NearestNeighbourMixing(Stage):
    """Replaces every update by the mean of the n - f updates nearest to it, itself included (Allouah et al., 2023).

    `u_i <- 1 / (n - f) * sum of u_j over the n - f nearest j`; ties go to the lower id. It makes honest updates of
    unlike clients alike, on which robust rules depend.
    """

    f: int = Field(1, ge=0, description="malicious clients that are tolerated; needs clients > 2 f")

    def check(self, clients: Clients) -> None:
        """The honest must be the majority."""
        if len(clients) <= 2 * self.f:
            raise OptionError(
                "f", f"nearest-neighbour mixing needs clients > 2 f, found {len(clients)} clients and f = {self.f}"
            )

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """Means of neighbours, as many as there are updates."""
        shares = self._shares(updates).to(updates.values)
        return StageResult(values=mixed(shares, updates.values), mixing=shares, state=state)

    def _shares(self, updates: ClientUpdates) -> Tensor:
        """What everybody takes from everybody, (n, n). Distances are gone before anything is mixed."""
        clients = len(updates.values)
        keep = max(1, clients - self.f)
        nearest = ranking(pairwise_distances(updates.values), updates.round.clients.ids)[:, :keep]
        shares = np.zeros((clients, clients))
        np.put_along_axis(shares, nearest, 1.0 / keep, axis=1)
        return torch.from_numpy(shares)


def mixed(shares: Tensor, values: Tensor) -> Tensor:
    """`shares @ values`, where equal rows of shares give rows that are equal to the last bit.

    A matrix product does not promise that, and what a rule behind it does with ties would depend on rounding.
    """
    distinct, which = np.unique(shares.cpu().numpy(), axis=0, return_inverse=True)
    mixing, rows = (torch.from_numpy(array).to(values.device) for array in (distinct, which))
    mixtures = torch.empty_like(values)
    for columns in column_blocks(values):
        mixtures[:, columns] = (mixing @ values[:, columns])[rows]
    return mixtures
