"""Bucketing: means of small random groups in place of the updates."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from crfl_core.extend import Clients, FixedStage, Mixing, OptionError, RoundFacts


class Bucketing(FixedStage):
    """Replaces the updates by the means of random buckets of clients (Karimireddy et al., 2022).

    `u_b <- 1 / |b| * sum of u_i over i in b`. Buckets are drawn anew in every round; each has `size` clients, the last
    one what is left. An attacker spoils a whole bucket, so the rule behind it faces the same number of attackers among
    fewer updates.
    """

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

    def mixing(self, facts: RoundFacts) -> Mixing:
        """The means of the buckets."""
        clients = len(facts.clients)
        generator = facts.streams.generator("aggregation/bucketing", round_number=facts.number)
        drawn = np.argsort(facts.clients.ids)[generator.permutation(clients)]
        shares = np.zeros((self.outputs(clients), clients))
        for bucket, first in enumerate(range(0, clients, self.size)):
            members = drawn[first : first + self.size]
            shares[bucket, members] = 1.0 / len(members)
        return Mixing(torch.from_numpy(shares))
