"""Norm filter: the longest updates are left out."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from crfl_aggregators.geometry import norms
from crfl_aggregators.selection import ranking, selected
from crfl_core.extend import Clients, ClientUpdates, OptionError, Stage, StageResult, State


class NormFilter(Stage):
    """Leaves out the f longest updates (Gupta et al., 2021: comparative gradient elimination).

    Keeps the `n - f` updates with the least `||u_i||`; ties go to the lower id. In front of fedavg it is the paper's
    rule.
    """

    f: int = Field(1, ge=0, description="updates that are left out; needs clients > f")

    def check(self, clients: Clients) -> None:
        """Somebody must be left."""
        if self.f >= len(clients):
            raise OptionError(
                "f", f"must be below the number of clients, found f = {self.f} for {len(clients)} clients"
            )

    def outputs(self, clients: int) -> int:
        """All but f."""
        return max(1, clients - self.f)

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """The shorter updates."""
        lengths = norms(updates.values).cpu().numpy()
        order = ranking(lengths, updates.round.clients.ids)
        return selected(updates, np.sort(order[: self.outputs(len(order))]), state)
