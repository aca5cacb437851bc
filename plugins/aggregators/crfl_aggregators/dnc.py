"""Divide and conquer: spectral outliers in random coordinates are left out."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from crfl_aggregators.filters import rank_clients
from crfl_aggregators.geometry import MIN_BLOCK_COLUMNS, Array, block_width
from crfl_core.extend import Clients, ClientUpdates, OptionError, Round, State, WeightedRule


class Dnc(WeightedRule):
    """Mean of the updates that are not outliers along the main direction of spread (Shejwalkar and Houmansadr, 2021).

    Each of `iterations` passes draws `dimensions` coordinates, centres the updates there at their mean, and scores
    client i by `<u_i - mean, v>^2`, v being the right singular vector of the centred updates with the largest singular
    value. The `n - filtering f` lowest scores survive, ties going to the lower id. `aggregate` is the mean of the
    clients that survive every pass; should there be none, of those that survive most often.
    """

    f: int = Field(1, ge=0, description="malicious clients that are expected, m in the paper")
    filtering: float = Field(1.0, gt=0, description="c: how many times f clients are left out in a pass")
    iterations: int = Field(5, ge=1, description="passes, each in coordinates of its own")
    dimensions: int = Field(10_000, ge=1, description="coordinates that a pass looks at, b; all if there are fewer")

    def check(self, clients: Clients) -> None:
        """Raise `OptionError` unless a client survives a pass."""
        if self.filtering * self.f >= len(clients):
            raise OptionError(
                "f",
                f"filtering x f must be below the number of clients, found {self.filtering:g} x {self.f} for "
                f"{len(clients)} clients",
            )

    def weigh(self, updates: ClientUpdates, state: State) -> Array:  # noqa: ARG002
        """Return equal weights for the clients that survive."""
        values = updates.values
        ids = updates.round.clients.ids
        keep = max(1, int(len(values) - self.filtering * self.f))
        survived = np.zeros(len(values), np.int64)
        for columns in self._coordinates(updates.round, values.shape[1]):
            survived[rank_clients(outlier_scores(values, columns, ids), ids)[:keep]] += 1
        chosen = survived == survived.max()
        shares: Array = chosen / chosen.sum()
        return shares

    def _coordinates(self, current: Round, size: int) -> list[Tensor]:
        """Draw the sorted coordinates of every pass."""
        if self.dimensions >= size:
            return [torch.arange(size)]  # all passes would be the same
        generator = current.streams.generator("aggregation/dnc", round_number=current.number)
        drawn = (generator.choice(size, self.dimensions, replace=False) for _ in range(self.iterations))
        return [torch.from_numpy(np.sort(columns)) for columns in drawn]


def outlier_scores(values: Tensor, coordinates: Tensor, ids: NDArray[np.int64]) -> Array:
    """Compute each row's squared projection on the main direction v.

    The score is `<u_i - mean, v>^2`, known up to a common factor. It is found from the products of the rows: if
    `X v = s y` with unit vectors, the scores are `s^2 y_i^2`, and y is the main eigenvector of `X X^T`. Rows come in
    the order of their ids, so that no other order changes a bit.
    """
    from scipy.linalg import eigh  # slow to import, and no other rule needs it

    order = np.argsort(ids)
    products = product_matrix(values, coordinates, torch.from_numpy(order).to(values.device))
    # The matrix is symmetric: transposed it has the order in which it can be worked on in place.
    _, vectors = eigh(products.T, subset_by_index=[len(ids) - 1] * 2, overwrite_a=True, check_finite=False)
    scores: Array = np.empty(len(ids))
    scores[order] = np.square(vectors[:, 0])
    return scores


def product_matrix(values: Tensor, coordinates: Tensor, order: Tensor) -> Array:
    """Compute the products of all pairs of centred rows.

    The rows are in this order, and the products use only these coordinates.
    """
    blocks = coordinates.to(values.device).split(block_width(len(values), MIN_BLOCK_COLUMNS // 2))
    largest = max(float(values[:, columns].abs().max()) for columns in blocks)
    scale = max(largest, torch.finfo(torch.float64).tiny)  # squares of huge updates stay finite
    products = values.new_zeros(len(values), len(values), dtype=torch.float64)
    buffer = values.new_empty(len(values), len(blocks[0]), dtype=torch.float64)
    for columns in blocks:
        block = buffer[:, : len(columns)].copy_(values[order[:, None], columns]).div_(scale)
        block -= block.mean(0)
        products.addmm_(block, block.T)
    return products.cpu().numpy()
