"""Stages that replace updates by means of several: bucketing and nearest-neighbour mixing."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from crfl_aggregators.filters import rank_clients
from crfl_aggregators.geometry import column_blocks, pairwise_distances
from crfl_core.extend import (
    Clients,
    ClientUpdates,
    FixedStage,
    Mixing,
    OptionError,
    RoundFacts,
    Stage,
    StageResult,
    State,
)


class Bucketing(FixedStage):
    """Replaces the updates by the means of random buckets of clients (Karimireddy et al., 2022).

    `u_b <- 1 / |b| * sum of u_i over i in b`. Buckets are drawn in every round; each has `size` clients, the last
    one what is left. An attacker spoils a whole bucket, so the rule behind it faces the same number of attackers among
    fewer updates.
    """

    size: int = Field(2, ge=2, description="clients per bucket, s")

    def check(self, clients: Clients) -> None:
        """Raise `OptionError` unless there are at least two buckets."""
        if self.size >= len(clients):
            raise OptionError(
                "size", f"must be below the number of clients, found size = {self.size} for {len(clients)} clients"
            )

    def outputs(self, clients: int) -> int:
        """Return the number of buckets."""
        return -(-clients // self.size)

    def mixing(self, facts: RoundFacts) -> Mixing:
        """Draw the buckets, and return the matrix that averages them."""
        clients = len(facts.clients)
        generator = facts.streams.generator("aggregation/bucketing", round_number=facts.number)
        drawn = np.argsort(facts.clients.ids)[generator.permutation(clients)]
        shares = np.zeros((self.outputs(clients), clients))
        for bucket, first in enumerate(range(0, clients, self.size)):
            members = drawn[first : first + self.size]
            shares[bucket, members] = 1.0 / len(members)
        return Mixing(torch.from_numpy(shares))


class NearestNeighbourMixing(Stage):
    """Replaces every update by the mean of the n - f updates nearest to it, itself included (Allouah et al., 2023).

    `u_i <- 1 / (n - f) * sum of u_j over the n - f nearest j`; ties go to the lower id. It makes honest updates of
    unlike clients alike, on which robust rules depend.
    """

    f: int = Field(1, ge=0, description="malicious clients that are tolerated; needs clients > 2 f")

    def check(self, clients: Clients) -> None:
        """Raise `OptionError` unless honest clients are the majority."""
        if len(clients) <= 2 * self.f:
            raise OptionError(
                "f", f"nearest-neighbour mixing needs clients > 2 f, found {len(clients)} clients and f = {self.f}"
            )

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """Replace every update by the mean of its neighbours."""
        shares = self._shares(updates).to(updates.values)
        return StageResult(values=mix_rows(shares, updates.values), mixing=shares, state=state)

    def _shares(self, updates: ClientUpdates) -> Tensor:
        """Return the share of every update in every mean, (n, n).

        Distances are freed before updates are mixed.
        """
        clients = len(updates.values)
        keep = max(1, clients - self.f)
        nearest = rank_clients(pairwise_distances(updates.values), updates.round.clients.ids)[:, :keep]
        shares = np.zeros((clients, clients))
        np.put_along_axis(shares, nearest, 1.0 / keep, axis=1)
        return torch.from_numpy(shares)


def mix_rows(shares: Tensor, values: Tensor) -> Tensor:
    """Compute `shares @ values` with bit-identical rows for equal shares.

    A matrix product does not promise that, and what a rule behind it does with ties would depend on rounding.
    """
    distinct, which = np.unique(shares.cpu().numpy(), axis=0, return_inverse=True)
    mixing, rows = (torch.from_numpy(array).to(values.device) for array in (distinct, which))
    mixtures = torch.empty_like(values)
    for columns in column_blocks(values):
        mixtures[:, columns] = (mixing @ values[:, columns])[rows]
    return mixtures
