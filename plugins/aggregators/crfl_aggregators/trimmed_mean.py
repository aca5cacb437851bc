"""Coordinate-wise trimmed mean and median."""

from __future__ import annotations

from abc import abstractmethod

import torch
from pydantic import Field
from torch import Tensor

from crfl_aggregators.coordinates import Choice, CoordinateWise, sorted_columns
from crfl_core.extend import Clients, ClientUpdates, OptionError


class Trimming(CoordinateWise):
    """The mean of what is left in every coordinate without the largest and the smallest values."""

    @abstractmethod
    def trimmed(self, rows: int) -> int:
        """How many values are dropped at each end."""

    def rows(self, updates: ClientUpdates) -> Tensor:
        """Everybody."""
        return torch.arange(len(updates.values), device=updates.values.device)

    def averaged(self, rows: int) -> int:
        """All but the trimmed."""
        return rows - 2 * self.trimmed(rows)

    def choose(self, block: Tensor) -> Choice:
        """The mean of the middle."""
        across = sorted_columns(block)
        trim = self.trimmed(len(block))
        first = trim
        last = len(block) - trim - 1
        ends = ((across[:, place].contiguous(), share_of(across, trim, place)) for place in (first, last))
        (low, low_share), (high, high_share) = ends
        return Choice(across[:, first : last + 1].mean(1), (low, high, low_share, high_share))

    def weights_in(self, block: Tensor, choice: Choice) -> Tensor:
        """Clients at an end of the middle share the places that are left for this value."""
        low, high, low_share, high_share = choice.facts
        weights = ((block > low) & (block < high)).to(block)
        weights = torch.where(block == low, low_share, weights)
        return torch.where(block == high, high_share, weights)


def share_of(across: Tensor, trim: int, place: int) -> Tensor:
    """What each client with the value at this place of the order has of the middle, (b, rows) -> (b,): 1 if no other
    has that value, else the places that are left for it, shared by all who have it.
    """
    value = across[:, place]
    rows = across.shape[1]
    share = torch.ones_like(value)
    beside = [across[:, other] == value for other in (place - 1, place + 1) if 0 <= other < rows]
    if beside and len(tied := torch.stack(beside).any(0).nonzero()[:, 0]):
        same = (across[tied] == value[tied, None]).to(across)
        share[tied] = same[:, trim : rows - trim].sum(1) / same.sum(1)
    return share


class TrimmedMean(Trimming):
    """Mean of the middle values of every coordinate (Yin et al., 2018).

    `aggregate_j = 1 / (n - 2 trim) * sum of u_ij` over the clients i that are left without the `trim` largest and the
    `trim` smallest values of coordinate j. Clients that tie at an end share its places equally.
    """

    trim: int = Field(1, ge=0, description="clients dropped at each end of every coordinate")

    def check(self, clients: Clients) -> None:
        """Somebody must be left."""
        if 2 * self.trim >= len(clients):
            raise OptionError(
                "trim",
                f"2 x trim must be below the number of clients, found trim = {self.trim} for {len(clients)} clients",
            )

    def trimmed(self, rows: int) -> int:
        """As configured; fewer if so few updates arrived that nobody would be left."""
        return min(self.trim, (rows - 1) // 2)


class Median(Trimming):
    """Median of every coordinate (Yin et al., 2018).

    `aggregate_j = median_i u_ij`; for an even number of clients the mean of the two in the middle. It is the trimmed
    mean that trims as much as it can.
    """

    def trimmed(self, rows: int) -> int:
        """All but one or two."""
        return (rows - 1) // 2
