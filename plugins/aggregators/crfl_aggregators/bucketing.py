"""Bucketing: means of small random groups in place of the updates."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from crfl_core.extend import Clients, ClientUpdates, Dependence, OptionError, Stage, StageResult, State


class Bucketing(Stage):
    """Replaces the updates by the means of random buckets of clients (Karimireddy et al., 2022).

    `u_b <- 1 / |b| * sum of u_i over i in b`. Buckets are drawn anew in every round; each has `size` clients, the last
    one what is left. An attacker spoils a whole bucket, so the rule behind it faces the same number of attackers among
    fewer updates.
    """

    depends: ClassVar[Dependence] = "fixed"
    size: int = Field(2, ge=2, description="clients per bucket, s")

    def check(self, clients: Clients) -> None:
        """At least two buckets."""
        if self.size >= len(clients):
            raise OptionError(
                "size", f"must be below the number of clients, found size = {self.size} for {len(clients)} clients"
            )

    def outputs(self, clients: int) -> int:
        """One per bucket."""
        return -(-clients // self.size)

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """The means of the buckets."""
        clients, current = len(updates.values), updates.round
        generator = current.streams.generator("aggregation/bucketing", round_number=current.number)
        drawn = np.argsort(current.clients.ids)[generator.permutation(clients)]
        shares = np.zeros((self.outputs(clients), clients))
        for bucket, first in enumerate(range(0, clients, self.size)):
            members = drawn[first : first + self.size]
            shares[bucket, members] = 1.0 / len(members)
        mixing = torch.from_numpy(shares).to(updates.values)
        return StageResult(values=mixing @ updates.values, mixing=mixing, state=state)
