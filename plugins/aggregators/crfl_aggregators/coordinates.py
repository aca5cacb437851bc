"""Base class of rules that treat every coordinate by itself.

Such a rule has a weight for each client and coordinate. The whole matrix is only made on demand; the largest weight of
each client, which the ledger keeps, is found along the way.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from crfl_aggregators.geometry import column_blocks
from crfl_core.extend import Aggregator, ClientUpdates, RuleResult, State

MAX_NUMBERS_OF_KEPT_CHOICES = 2**22
"""Numbers of the updates up to which choices are kept, so that reporting every weight needs no second look."""


class Choice(NamedTuple):
    """Result for a block of coordinates, (b,), and the facts that `block_weights` needs."""

    update: Tensor
    facts: tuple[Tensor, ...]


class CoordinateWise(Aggregator):
    """Rules that average, in every coordinate, the same number of clients with equal weights.

    Clients that tie share their places.
    """

    @abstractmethod
    def select_clients(self, updates: ClientUpdates) -> Tensor:
        """Select the clients that the rule considers, as row numbers."""

    @abstractmethod
    def averaging_count(self, rows: int) -> int:
        """Return the number of clients that are averaged in each coordinate."""

    @abstractmethod
    def choose(self, block: Tensor) -> Choice:
        """Compute the result for a (rows, b) block of updates."""

    @abstractmethod
    def block_weights(self, block: Tensor, choice: Choice) -> Tensor:
        """Return the weights of some rows of a block, times `averaging_count`.

        A weight is 1 if the client was chosen, less if it tied, else 0.
        """

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """Aggregate block by block, and find the largest weight of each client."""
        values = updates.values
        rows = self.select_clients(updates)
        update = torch.empty_like(values[0])
        largest = values.new_zeros(len(rows))
        chosen: list[Choice] = []
        for columns in column_blocks(values):
            block = select_block(values, rows, columns)
            choice = self.choose(block)
            if values.numel() <= MAX_NUMBERS_OF_KEPT_CHOICES:
                chosen.append(choice)
            update[columns] = choice.update
            # A client that was chosen somewhere has the largest weight there is: no need to look at it again.
            open_rows = torch.nonzero(largest < 1).flatten()
            if len(open_rows):
                found = self.block_weights(block[open_rows], choice).amax(1)
                largest[open_rows] = torch.maximum(largest[open_rows], found)
        weights = values.new_zeros(len(values), dtype=torch.float64)
        weights[rows] = largest.double() / self.averaging_count(len(rows))
        return RuleResult(update, weights, full_weights=lambda: self._full_weights(values, rows, chosen), state=state)

    def _full_weights(self, values: Tensor, rows: Tensor, chosen: Sequence[Choice]) -> Tensor:
        """Return the weight of every client in every coordinate, (n, P).

        Choices that were not kept are made again.
        """
        weights = torch.zeros_like(values)
        for number, columns in enumerate(column_blocks(values)):
            block = select_block(values, rows, columns)
            choice = chosen[number] if chosen else self.choose(block)
            found = self.block_weights(block, choice).div_(self.averaging_count(len(rows)))
            if len(rows) == len(values):
                weights[:, columns] = found
            else:
                weights[rows, columns] = found
        return weights


def select_block(values: Tensor, rows: Tensor, columns: slice) -> Tensor:
    """Return some rows of some columns.

    The result is a view if all rows are wanted in order.
    """
    block = values[:, columns]
    return block if len(rows) == len(values) else block[rows]


def sort_columns(block: Tensor) -> Tensor:
    """Sort the values of every coordinate, (rows, b) -> (b, rows)."""
    return sort_rows(block.T.clone(memory_format=torch.contiguous_format))


def sort_rows(rows: Tensor) -> Tensor:
    """Sort every row; the input may be overwritten.

    NumPy sorts many short rows several times faster than PyTorch does, and faster than it partitions them.
    """
    if rows.device.type != "cpu":
        return rows.sort(dim=1).values
    rows.numpy().sort(axis=1)
    return rows
