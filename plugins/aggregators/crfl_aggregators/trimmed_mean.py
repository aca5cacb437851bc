"""Coordinate-wise trimmed mean and median."""

from __future__ import annotations

from abc import abstractmethod

import torch
from pydantic import Field
from torch import Tensor

from crfl_aggregators.coordinates import Choice, CoordinateWise, sort_columns
from crfl_core.extend import Clients, ClientUpdates, OptionError


class Trimming(CoordinateWise):
    """Mean of every coordinate without its largest and its smallest values."""

    @abstractmethod
    def trim_count(self, rows: int) -> int:
        """Return the number of values that are dropped at each end."""

    def select_clients(self, updates: ClientUpdates) -> Tensor:
        """Select all clients."""
        return torch.arange(len(updates.values), device=updates.values.device)

    def averaging_count(self, rows: int) -> int:
        """Return the number of rows that are not trimmed."""
        return rows - 2 * self.trim_count(rows)

    def choose(self, block: Tensor) -> Choice:
        """Average the middle values."""
        across = sort_columns(block)
        trim = self.trim_count(len(block))
        first = trim
        last = len(block) - trim - 1
        ends = ((across[:, place].contiguous(), tie_share(across, trim, place)) for place in (first, last))
        (low, low_share), (high, high_share) = ends
        return Choice(across[:, first : last + 1].mean(1), (low, high, low_share, high_share))

    def block_weights(self, block: Tensor, choice: Choice) -> Tensor:
        """Return the weight of each client in the mean of the middle.

        The weight is 1 inside the middle. A client at an end gets a share of the places left for its value.
        """
        low, high, low_share, high_share = choice.facts
        weights = ((block > low) & (block < high)).to(block)
        weights = torch.where(block == low, low_share, weights)
        return torch.where(block == high, high_share, weights)


def tie_share(across: Tensor, trim: int, place: int) -> Tensor:
    """Compute each client's share of the middle, (b, rows) -> (b,).

    The share is that of a client with the value at `place`. It is 1 if no other client has that value, else the places
    that are left for it, shared by all clients that have it.
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
        """Raise `OptionError` unless a client is left."""
        if 2 * self.trim >= len(clients):
            raise OptionError(
                "trim",
                f"2 x trim must be below the number of clients, found trim = {self.trim} for {len(clients)} clients",
            )

    def trim_count(self, rows: int) -> int:
        """Return `trim`, or less if few updates arrived.

        At least one update is left.
        """
        return min(self.trim, (rows - 1) // 2)


class Median(Trimming):
    """Median of every coordinate (Yin et al., 2018).

    `aggregate_j = median_i u_ij`; for an even number of clients the mean of the two in the middle. It is the trimmed
    mean that trims as much as it can.
    """

    def trim_count(self, rows: int) -> int:
        """Return the number that leaves one or two values."""
        return (rows - 1) // 2
