"""Bulyan: repeated Krum, then a trimmed mean around the median."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from crfl_aggregators.coordinates import Choice, CoordinateWise, sort_columns
from crfl_aggregators.filters import rank_clients
from crfl_aggregators.geometry import Array, pairwise_distances, row_blocks
from crfl_core.extend import Clients, ClientUpdates, OptionError


class Bulyan(CoordinateWise):
    """Krum, repeated, then the mean of the values nearest to the median of every coordinate (El Mhamdi et al., 2018).

    Krum selects `t = n - 2 f` clients, one after the other, each among those that are left with `m - f - 2` neighbours
    for m clients (at least one). Then `aggregate_j = 1 / (t - 2 f) * sum of u_ij` over the `t - 2 f` selected clients i
    with the least `|u_ij - median_j|`. Clients that tie share their places equally.
    """

    f: int = Field(1, ge=0, description="malicious clients that are tolerated; needs clients >= 4 f + 3")

    def check(self, clients: Clients) -> None:
        """Raise `OptionError` unless a majority is left after both steps."""
        if len(clients) < 4 * self.f + 3:
            raise OptionError(
                "f",
                f"bulyan needs clients >= 4 f + 3, found {len(clients)} clients and f = {self.f}: lower f, or let more "
                "clients take part",
            )

    def select_clients(self, updates: ClientUpdates) -> Tensor:
        """Select clients by repeated Krum, in ascending order."""
        keep = max(1, len(updates.values) - 2 * self.f)
        chosen = select_by_krum(pairwise_distances(updates.values), updates.round.clients.ids, self.f, keep)
        return torch.from_numpy(np.sort(chosen)).to(updates.values.device)

    def averaging_count(self, rows: int) -> int:
        """Return the number of selected clients but 2 f.

        It is one or two, those in the middle, if few updates arrived.
        """
        return rows - 2 * min(self.f, (rows - 1) // 2)

    def choose(self, block: Tensor) -> Choice:
        """Average the values nearest to the median.

        They lie within the smallest distance of the median that holds enough of them.
        """
        across = sort_columns(block)
        total = len(block)
        kept = self.averaging_count(len(block))
        low = across[:, (total - 1) // 2]
        high = across[:, total // 2]
        distance = distance_to_median(across, low[:, None], high[:, None])
        # The nearest values are neighbours in the order: the best of all windows of this width.
        reach = torch.maximum(distance[:, : total - kept + 1], distance[:, kept - 1 :]).amin(1)
        near = (distance < reach[:, None]).to(across)
        tied = (distance == reach[:, None]).to(across)
        share = (kept - near.sum(1)) / tied.sum(1)
        return Choice(((near + share[:, None] * tied) * across).sum(1) / kept, (low, high, reach, share))

    def block_weights(self, block: Tensor, choice: Choice) -> Tensor:
        """Give 1 to nearer clients and a share to the last.

        Clients at the last distance share the places that are left.
        """
        low, high, reach, share = choice.facts
        distance = distance_to_median(block, low, high)
        return torch.where(distance == reach, share, (distance < reach).to(block))


def distance_to_median(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Compute twice the distance from the middle of `low` and `high`.

    These two tie, and rounding must not tell them apart.
    """
    return ((values - low) + (values - high)).abs_()


def select_by_krum(distances: Array, ids: NDArray[np.int64], f: int, keep: int) -> NDArray[np.int64]:
    """Apply Krum `keep` times, each time without the winners before.

    Ties go to the lower id. The distances are overwritten: row i becomes those to the others from near to far. Winners
    are taken out of it, and the last row takes the place of theirs, so that the first rows and columns are always what
    counts.
    """
    order = np.argsort(ids)
    clients = len(distances)
    others = sort_by_distance(distances, order)
    left = np.argsort(order)
    chosen = []
    for count in range(clients, clients - keep, -1):
        neighbours = max(1, count - f - 2)
        winner = int(rank_clients(distances[:count, 1 : neighbours + 1].sum(axis=1), left[:count])[0])
        chosen.append(left[winner])
        for table in (distances, others, left):
            table[winner] = table[count - 1]
        for rows in row_blocks(distances[: count - 1]):
            stay = others[rows, :count] != chosen[-1]
            for table in (distances, others):
                table[rows, : count - 1] = table[rows, :count][stay].reshape(-1, count - 1)
    result: NDArray[np.int64] = order[np.asarray(chosen)]
    return result


def sort_by_distance(distances: Array, order: NDArray[np.int64]) -> NDArray[np.integer]:
    """Sort every row, and return whose the distances are.

    Clients are numbered by their places in `order`, which also decides ties.
    """
    clients = len(distances)
    others = np.empty(distances.shape, np.min_scalar_type(-clients))  # a quarter of the distances, or half of them
    for rows in row_blocks(distances):
        by_id = distances[rows][:, order]
        others[rows] = nearest = np.argsort(by_id, axis=1, kind="stable")
        distances[rows] = np.take_along_axis(by_id, nearest, axis=1)
    return others
