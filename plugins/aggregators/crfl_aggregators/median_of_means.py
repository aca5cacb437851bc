"""Geometric median of means."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from crfl_aggregators.geometry import central_view
from crfl_aggregators.rfa import geometric_median
from crfl_core.extend import Clients, ClientUpdates, OptionError, State, WeightedRule, Weighting


class MedianOfMeans(WeightedRule):
    """Geometric median of the means of fixed groups of clients (Chen et al., 2017).

    Clients are put into `groups` of equal size (by one), in the order of their ids, and
    `aggregate = argmin_v sum_g ||v - mean of the updates in g||`, by the iterations of `rfa`. It withstands fewer
    malicious clients than half of the groups. `objective`, `optimality_gap` and `iterations` are in the ledger as for
    `rfa`.
    """

    groups: int = Field(5, ge=1, description="k; every attacker can spoil one, so more than twice the attackers")
    smoothing: float = Field(1e-6, gt=0, lt=1, description="as in rfa")
    tolerance: float = Field(1e-6, ge=0, description="as in rfa")
    iterations: int = Field(100, ge=1, description="as in rfa")

    def check(self, clients: Clients) -> None:
        """Raise `OptionError` if a group would be empty."""
        if self.groups > len(clients):
            raise OptionError(
                "groups",
                f"must be at most the number of clients, found {self.groups} groups for {len(clients)} clients",
            )

    def weigh(self, updates: ClientUpdates, state: State) -> Weighting:
        """Compute the geometric median of group means.

        The weight of a client is that of its group, divided by the group's size.
        """
        clients = updates.round.clients
        grouping = np.zeros((min(self.groups, len(clients)), len(clients)))
        for group, members in enumerate(np.array_split(np.argsort(clients.ids), len(grouping))):
            grouping[group, members] = 1.0 / len(members)
        seen = central_view(updates.values, grouping)
        found = geometric_median(
            seen,
            np.full(len(grouping), 1.0 / len(grouping)),
            smoothing=self.smoothing,
            tolerance=self.tolerance,
            iterations=self.iterations,
        )
        weights = found.weights @ grouping * seen.factors
        return Weighting(weights, state, found.notes)
