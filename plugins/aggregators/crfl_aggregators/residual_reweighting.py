"""Residual-based reweighting: trust in clients whose values lie on the line through all values."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from crfl_aggregators.coordinates import sort_rows
from crfl_aggregators.geometry import NUMBERS_PER_BLOCK, Array
from crfl_aggregators.repeated_median import median_slopes
from crfl_core.extend import Aggregator, Clients, ClientUpdates, OptionError, RuleResult, State

NORMAL_SPREAD = 1.4826
"""Factor that makes the median of absolute residuals an estimate of a standard deviation."""


class ResidualReweighting(Aggregator):
    """Mean of the updates, each weighted by its residuals from a robust line per coordinate (Fu et al., 2019).

    In every coordinate the values are plotted against their rank `x = 0..n-1`, and a line is fitted: its slope is the
    repeated median `median_i median_{j != i} (y_j - y_i) / (x_j - x_i)`, and it passes through the medians of x and y.
    With residuals `r_i` and `tau = 1.4826 (1 + 5 / (n - 1)) median |r|`, the median without the smallest, the
    confidence in a value is `c_i = min(1, clip sqrt(2 / n) h_i tau / |r_i|)`, where `1 - h_i^2` is the leverage of
    `x_i`. A value of confidence below `threshold` is replaced by the line's. A client's weight is the sum of its
    confidences over all coordinates, each times the standard deviation of the coordinate's confidences, to the `power`
    of 2 as in the authors' code, divided by that of all clients. Where its value was replaced its weight is 0, and what
    stands there instead is the offset: a huge value that is not trusted has no part in the result, not even by
    rounding. The authors' code also adds 1e-7 to tau, which is left out here: updates of any size are treated alike.
    Needs time in n^2 P, for comparing all pairs a few times in every coordinate.
    """

    clip: float = Field(2.0, gt=0, description="lambda, how large a residual is still trusted")
    threshold: float = Field(0.1, ge=0, le=1, description="delta, confidence below which a value is replaced")
    power: float = Field(2.0, gt=0, description="sharpens the clients' weights; 1: proportional to confidence")

    def check(self, clients: Clients) -> None:
        """Raise `OptionError` for fewer than three clients.

        A line has no residuals then.
        """
        if len(clients) < 3:
            raise OptionError("type", f"a line needs clients >= 3, found {len(clients)}: use fedavg")

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """Compute the weighted mean of the corrected updates."""
        values = updates.values
        clients = len(updates.values)
        order = torch.from_numpy(np.argsort(updates.round.clients.ids)).to(values.device)
        confidence = values.new_zeros(clients, dtype=torch.float64)
        slopes = torch.empty_like(values[0])
        doubts = DoubtfulValues(values)
        for columns in cache_blocks(values):
            ordered, ranks = rank_values(values[:, columns][order])  # ties in a coordinate are ranked by id
            slopes[columns] = fit_slopes(ordered)
            trusted = self._trust(ordered, fit_lines(ordered, slopes[columns]))
            spread = trusted.std(1, keepdim=True) if clients > 1 else torch.zeros_like(trusted)
            trusted = torch.empty_like(trusted).scatter_(1, ranks, trusted)
            confidence[order] += (trusted * spread).sum(0).double()
            doubts.store(columns, (trusted < self.threshold).T)
        weights = torch.from_numpy(normalise_confidence(confidence.cpu().numpy(), self.power)).to(values.device)
        shares = weights.to(values)
        counts = torch.zeros_like(weights)
        update = torch.empty_like(values[0])
        offset = torch.empty_like(values[0])
        for columns in cache_blocks(values):
            # The order is found again: it would take more room than the updates.
            block = values[:, columns][order]
            doubtful = doubts.load(columns)
            ordered, ranks = rank_values(block)
            lines = fit_lines(ordered, slopes[columns])
            lines = torch.empty_like(lines).scatter_(1, ranks, lines).T
            update[columns] = shares[order] @ torch.where(doubtful, lines, block)
            offset[columns] = shares[order] @ lines.masked_fill(~doubtful, 0.0)
            counts[order] += (~doubtful).sum(1)
        return RuleResult(
            update=update,
            weights=torch.where(counts > 0, weights, 0.0),
            offset=offset,
            full_weights=lambda: full_weights(shares, order, doubts),
            state=state,
        )

    def _trust(self, ordered: Tensor, lines: Tensor) -> Tensor:
        """Compute the confidence in sorted values, (b, n).

        The lines are given at every rank.
        """
        clients = ordered.shape[1]
        residuals = (ordered - lines).abs_()
        if clients < 3:
            return torch.ones_like(residuals)
        sizes = sort_rows(residuals.clone())[:, 1:]
        scale = NORMAL_SPREAD * (1 + 5 / (clients - 1)) * row_medians(sizes)
        reach = self.clip * np.sqrt(2 / clients) * scale[:, None] * leverage_factors(clients, ordered)
        return torch.where(residuals > reach, reach / residuals, 1.0)


class DoubtfulValues:
    """Values that are not trusted, a bit for each.

    Eight clients, in the order of their ids, share a byte.
    """

    def __init__(self, values: Tensor) -> None:
        self.clients, self.size, self.device = *values.shape, values.device
        self.bits = np.empty((-(-self.clients // 8), self.size), np.uint8)

    def store(self, columns: slice, doubtful: Tensor) -> None:
        """Store some columns, (n, b)."""
        self.bits[:, columns] = np.packbits(doubtful.cpu().numpy(), axis=0)

    def load(self, columns: slice) -> Tensor:
        """Return stored columns."""
        found = np.unpackbits(self.bits[:, columns], axis=0, count=self.clients).view(np.bool_)
        return torch.from_numpy(found).to(self.device)


def cache_blocks(values: Tensor) -> list[slice]:
    """Return blocks of columns of the updates that fit the cache.

    A block stays in the cache of one core.
    """
    width = max(1, NUMBERS_PER_BLOCK // (2 * len(values)))
    return [slice(first, first + width) for first in range(0, values.shape[1], width)]


def full_weights(shares: Tensor, order: Tensor, doubts: DoubtfulValues) -> Tensor:
    """Return every client's weight in every coordinate.

    The weight is 0 where the value of the client was replaced.
    """
    weights = shares.new_empty(doubts.clients, doubts.size)
    for columns in cache_blocks(weights):
        weights[order, columns] = torch.where(doubts.load(columns), 0.0, shares[order, None])
    return weights


def rank_values(block: Tensor) -> tuple[Tensor, Tensor]:
    """Sort the values of every coordinate: (n, b) -> (b, n).

    The second tensor has the rows from which the values came. Equal values keep their order.
    """
    across = block.T.contiguous()
    if across.device.type != "cpu":
        found = across.sort(dim=1, stable=True)
        return found.values, found.indices
    values = across.numpy()
    order = values.argsort(axis=1)  # several times faster than an order that minds ties, which are rare
    ordered = np.take_along_axis(values, order, axis=1)
    if len(tied := np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))):
        order[tied] = values[tied].argsort(axis=1, kind="stable")
    return torch.from_numpy(ordered), torch.from_numpy(order)


def fit_slopes(across: Tensor) -> Tensor:
    """Compute the repeated median of slopes, (b, n) -> (b,).

    The slopes are those of the sorted values against rank.
    """
    if across.shape[1] == 1:
        return torch.zeros_like(across[:, 0])
    return torch.from_numpy(median_slopes(across.cpu().numpy())).to(across)


def fit_lines(across: Tensor, slope: Tensor) -> Tensor:
    """Evaluate each coordinate's line at every rank: (b, n) -> (b, n).

    The line fits the sorted values against their rank.
    """
    clients = across.shape[1]
    ranks = torch.arange(clients, dtype=across.dtype, device=across.device)
    return row_medians(across)[:, None] + slope[:, None] * (ranks - (clients - 1) / 2)


def row_medians(across: Tensor) -> Tensor:
    """Return the median of sorted rows.

    It is the mean of the middle two if their number is even.
    """
    count = across.shape[1]
    return across[:, [(count - 1) // 2, count // 2]].mean(1)


def leverage_factors(clients: int, like: Tensor) -> Tensor:
    """Compute `sqrt(1 - H_ii)` of the hat matrix of a line.

    The line is over the ranks 0..n-1.
    """
    centred = torch.arange(clients, dtype=torch.float64) - (clients - 1) / 2
    hat = 1 / clients + centred.square() / centred.square().sum()
    return (1 - hat).clamp(min=0).sqrt().to(like)


def normalise_confidence(confidence: Array, power: float) -> Array:
    """Return weights that sum to 1.

    All weights are equal if no client has any confidence.
    """
    largest = confidence.max()
    if largest == 0:
        return np.full_like(confidence, 1 / len(confidence))
    weights = (confidence / largest) ** power
    result: Array = weights / weights.sum()
    return result
