"""Coordinate-wise trimmed mean."""

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
        middle = across[:, trim : len(block) - trim]
        return Choice(middle.mean(1), (across, middle))

    def weights_in(self, block: Tensor, choice: Choice) -> Tensor:
        """Clients at an end of the middle share the places that are left for this value."""
        across, middle = choice.facts
        weights = ((block > middle[:, 0]) & (block < middle[:, -1])).to(block)
        for end in (middle[:, :1], middle[:, -1:]):
            share = (middle == end).to(block).sum(1) / (across == end).to(block).sum(1)
            weights = torch.where(block == end.T, share, weights)
        return weights


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
