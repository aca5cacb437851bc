"""What rules that treat every coordinate on its own have in common.

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

KEPT_NUMBERS = 2**22
"""What was chosen is kept for updates of up to this size, so that reporting every weight needs no second look."""


class Choice(NamedTuple):
    """What a rule does to a block of coordinates: its result, (b,), and all that `weights_in` needs to retell it."""

    update: Tensor
    facts: tuple[Tensor, ...]


class CoordinateWise(Aggregator):
    """Averages, in every coordinate, the same number of clients with equal weights; clients that tie share theirs."""

    @abstractmethod
    def rows(self, updates: ClientUpdates) -> Tensor:
        """The clients that are looked at, as row numbers."""

    @abstractmethod
    def averaged(self, rows: int) -> int:
        """How many of them are averaged in each coordinate."""

    @abstractmethod
    def choose(self, block: Tensor) -> Choice:
        """The result for a (rows, b) block of updates."""

    @abstractmethod
    def weights_in(self, block: Tensor, choice: Choice) -> Tensor:
        """The weights of some rows of a block, times `averaged`: 1 if chosen, less if tied, else 0."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """Block by block, with each client's largest weight."""
        values = updates.values
        rows = self.rows(updates)
        update = torch.empty_like(values[0])
        largest = values.new_zeros(len(rows))
        chosen: list[Choice] = []
        for columns in column_blocks(values):
            block = select(values, rows, columns)
            choice = self.choose(block)
            if values.numel() <= KEPT_NUMBERS:
                chosen.append(choice)
            update[columns] = choice.update
            # A client that was chosen somewhere has the largest weight there is: no need to look at it again.
            open_rows = torch.nonzero(largest < 1).flatten()
            if len(open_rows):
                found = self.weights_in(block[open_rows], choice).amax(1)
                largest[open_rows] = torch.maximum(largest[open_rows], found)
        weights = values.new_zeros(len(values), dtype=torch.float64)
        weights[rows] = largest.double() / self.averaged(len(rows))
        return RuleResult(update, weights, full_weights=lambda: self._full_weights(values, rows, chosen), state=state)

    def _full_weights(self, values: Tensor, rows: Tensor, chosen: Sequence[Choice]) -> Tensor:
        """The weight of every client in every coordinate, (n, P), from what was chosen, or found again."""
        weights = torch.zeros_like(values)
        for number, columns in enumerate(column_blocks(values)):
            block = select(values, rows, columns)
            choice = chosen[number] if chosen else self.choose(block)
            found = self.weights_in(block, choice).div_(self.averaged(len(rows)))
            if len(rows) == len(values):
                weights[:, columns] = found
            else:
                weights[rows, columns] = found
        return weights


def select(values: Tensor, rows: Tensor, columns: slice) -> Tensor:
    """Some rows of some columns: a view if all rows are wanted in order."""
    block = values[:, columns]
    return block if len(rows) == len(values) else block[rows]


def sorted_columns(block: Tensor) -> Tensor:
    """The values of every coordinate in ascending order, (rows, b) -> (b, rows)."""
    return sort_rows(block.T.clone(memory_format=torch.contiguous_format))


def sort_rows(rows: Tensor) -> Tensor:
    """Rows in ascending order; the input may be overwritten.

    NumPy sorts many short rows several times faster than PyTorch does, and faster than it partitions them.
    """
    if rows.device.type != "cpu":
        return rows.sort(dim=1).values
    rows.numpy().sort(axis=1)
    return rows
