"""Zeno for crfl: the server tries every update on samples of its own, and averages those that help most."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from crfl_core.extend import (
    Aggregator,
    Clients,
    ClientUpdates,
    OptionError,
    Round,
    RuleResult,
    RootSamples,
    ServerView,
    State,
)
from numpy.typing import NDArray
from pydantic import Field

AT_ONCE = 32
"""How many candidate models are tried on the root samples in one computation."""


class Zeno(Aggregator):
    """Mean of the updates that lower the server's own loss most (Xie, Koyejo and Gupta, 2019).

    With the loss L on root samples and the broadcast model w, an update scores `L(w) - L(w + u) - rho ||u||^2`; the b
    lowest are left out, and ties go to the lower id. A single honest client is enough, if b is at least the number of
    attackers. What the paper calls rho is about gradients, `rho gamma^2` of this one for a rate gamma.
    """

    needs_root: ClassVar[bool] = True

    b: int = Field(1, ge=0, description="updates that are left out, at least the number of attackers")
    rho: float = Field(0.0005, ge=0, description="price of length: how much a squared norm of 1 takes from a score")
    samples: int | None = Field(None, ge=1, description="root samples drawn for each round; unset: all of them")

    def check(self, clients: Clients) -> None:
        """At least one client must be left."""
        if len(clients) <= self.b:
            raise OptionError("b", f"must be below the number of clients, found {self.b} for {len(clients)}")

    def prepare(self, server: ServerView) -> State:
        """Nothing to remember; but a round cannot draw more samples than there are."""
        assert server.root is not None  # because of `needs_root`
        if self.samples is not None and self.samples > len(server.root.y):
            raise OptionError("samples", f"found {self.samples}, but reserve.root has {len(server.root.y)}")
        return {}

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """Return the mean of the best. Rounds may have fewer updates than planned: at least one is kept."""
        scores = self.scores(updates)
        order = np.lexsort((updates.round.clients.ids, -scores))
        kept = order[: max(1, len(order) - self.b)]
        weights = updates.values.new_zeros(len(order), dtype=torch.float64)
        weights[torch.from_numpy(kept)] = 1.0 / len(kept)
        lowest = float(scores[kept].min())
        return RuleResult(
            update=weights.to(updates.values) @ updates.values,
            weights=weights,
            state=state,
            notes={"lowest_kept_score": lowest} if np.isfinite(lowest) else {},
        )

    def scores(self, updates: ClientUpdates) -> NDArray[np.float64]:
        """Return the stochastic descendant score of every update, (n,); minus infinity where no loss is finite."""
        server, start = self._server(updates.round), updates.round.start.double()
        before, found = server.loss(start), []
        for rows in updates.values.split(AT_ONCE):
            candidates = rows.double()
            after = server.loss(start + candidates)
            found.append(before - after - self.rho * torch.linalg.vector_norm(candidates, dim=1).square())
        scores: NDArray[np.float64] = torch.cat(found).cpu().numpy()
        return np.nan_to_num(scores, nan=-np.inf, posinf=-np.inf, neginf=-np.inf)

    def _server(self, current: Round) -> ServerView:
        """Return the server with the root samples of this round."""
        server = current.server
        if self.samples is None or server.root is None:
            return server
        generator = server.streams.generator("aggregation/zeno", round_number=current.number)
        rows = torch.from_numpy(generator.choice(len(server.root.y), self.samples, replace=False))
        return replace(server, root=RootSamples(server.root.x[rows], server.root.y[rows]))
