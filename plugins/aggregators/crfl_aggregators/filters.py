"""Filters: stages that leave out long updates or updates that point in another direction than most."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from crfl_aggregators.geometry import COSINE_TOLERANCE, Array, cosines, norms, row_blocks
from crfl_core.extend import Clients, ClientUpdates, OptionError, Stage, StageResult, State

SCORE_DIGITS = 12
"""Scores that agree in this number of digits are the same: the order in which a sum was taken must not decide."""


def rank_clients(scores: Array, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rank clients along the last axis by ascending score, ties by id.

    The order of the rows does not matter.
    """
    digits, exponents = np.frexp(scores)
    rounded = np.ldexp(digits.round(SCORE_DIGITS), exponents)
    return np.lexsort((np.broadcast_to(ids, scores.shape), rounded), axis=-1)


def keep_rows(updates: ClientUpdates, rows: NDArray[np.int64], state: State) -> StageResult:
    """Keep the updates in these rows.

    The mixing matrix has a 1 for each of them.
    """
    chosen = torch.from_numpy(rows).to(updates.values.device)
    mixing = updates.values.new_zeros(len(chosen), len(updates.values))
    mixing.scatter_(1, chosen[:, None], 1.0)
    return StageResult(values=updates.values[chosen], mixing=mixing, state=state)


class NormFilter(Stage):
    """Leaves out the f longest updates (Gupta et al., 2021: comparative gradient elimination).

    Keeps the `n - f` updates with the least `||u_i||`; ties go to the lower id. In front of fedavg it is the paper's
    rule.
    """

    f: int = Field(1, ge=0, description="updates that are left out; needs clients > f")

    def check(self, clients: Clients) -> None:
        """Raise `OptionError` unless an update is left."""
        if self.f >= len(clients):
            raise OptionError(
                "f", f"must be below the number of clients, found f = {self.f} for {len(clients)} clients"
            )

    def outputs(self, clients: int) -> int:
        """Return the number of updates but f."""
        return max(1, clients - self.f)

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """Keep the shorter updates."""
        lengths = norms(updates.values).cpu().numpy()
        order = rank_clients(lengths, updates.round.clients.ids)
        return keep_rows(updates, np.sort(order[: self.outputs(len(order))]), state)


class CosineFilter(Stage):
    """Leaves out updates whose direction differs from that of most others (after Munoz-Gonzalez et al., 2019).

    Keeps client i if `median_{j != i} cos(u_i, u_j) >= threshold`. The paper compares with the current aggregate, which
    attackers move along; the median over the others needs no aggregate and withstands any minority. If no
    client reaches the threshold, those that come nearest to it are kept.
    """

    threshold: float = Field(0.0, ge=-1, le=1, description="least cosine of the angle to the typical other client")

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """Keep the updates that agree with most others."""
        agreement = typical_cosines(cosines(updates.values))
        needed = min(self.threshold, agreement.max()) - COSINE_TOLERANCE
        return keep_rows(updates, np.flatnonzero(agreement >= needed), state)


def typical_cosines(similarity: Array) -> Array:
    """Return the median of each row without its diagonal entry.

    The result is 1 for a single client.
    """
    clients = len(similarity)
    if clients == 1:
        return np.ones(1)
    found = []
    for rows in row_blocks(similarity):
        others = np.arange(clients) != np.arange(clients)[rows, None]
        found.append(np.median(similarity[rows][others].reshape(-1, clients - 1), axis=1))
    return np.concatenate(found)
