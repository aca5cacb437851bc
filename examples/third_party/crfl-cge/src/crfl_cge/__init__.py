"""Comparative gradient elimination for crfl: the mean of the shortest updates, with a proof of how robust it is."""

from __future__ import annotations

import numpy as np
import torch
from crfl_core.extend import Aggregator, Clients, ClientUpdates, OptionError, RuleResult, State
from numpy.typing import NDArray
from pydantic import Field


class Cge(Aggregator):
    """Comparative gradient elimination: the mean of all but the f longest updates (Gupta, Liu and Vaidya, 2021).

    `aggregate = 1/(n - f) sum of u_i` over the n - f clients with the least `||u_i||`; ties go to the lower id.
    """

    f: int = Field(1, ge=0, description="updates that are left out; withstands as many attackers; clients > 2 f")

    def check(self, clients: Clients) -> None:
        """Refuse rounds in which half of the updates are eliminated, or more: attackers could own the mean."""
        if len(clients) <= 2 * self.f:
            raise OptionError("f", f"2 f must be below the number of clients, found f = {self.f} for {len(clients)}")

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """Return the mean of the shorter updates. Rounds may have fewer updates than planned: at least one is kept."""
        lengths = torch.linalg.vector_norm(updates.values.double(), dim=1).cpu().numpy()
        order = np.lexsort((updates.round.clients.ids, lengths))
        kept = order[: max(1, len(order) - self.f)]
        weights = updates.values.new_zeros(len(order), dtype=torch.float64)
        weights[torch.from_numpy(kept)] = 1.0 / len(kept)
        return RuleResult(update=weights.to(updates.values) @ updates.values, weights=weights, state=state)

    def breakdown(self, clients: Clients, aggregate: RuleResult, update_bound: float) -> NDArray[np.float64] | None:  # noqa: ARG002
        """Return `2 m U / (n - f)` for m <= f arbitrary clients, if no honest update is longer than U; infinite beyond.

        Both means are over vectors no longer than U: if one of at most f attackers is kept, some honest client was
        eliminated for being longer. Of the others both worlds keep the shortest, so of the n - f clients in the clean
        mean at least n - f - m are in the attacked one, too. Two means of vectors in a ball of radius U that share all
        but a fraction q of the larger set are at most 2 q U apart. This includes attackers whose update is discarded,
        who only make the attacked set smaller. With weight decay U does not bound whole updates: nothing is known.
        """
        if (clients.retention < 1).any():
            return None
        attackers = np.arange(len(clients) + 1.0)
        return np.where(attackers <= self.f, 2.0 * update_bound * attackers / (len(clients) - self.f), np.inf)
