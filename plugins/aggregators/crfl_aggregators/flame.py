"""FLAME: keep the majority that pulls in about the same direction, clip it, and hide the rest behind noise."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from crfl_aggregators.geometry import Array, cosines, norms, weighted_sum
from crfl_core.extend import Aggregator, ClientUpdates, Round, RuleResult, State

DIGITS = 12
"""Decimal places of cosine distances that count: what comes behind is rounding, and must not decide between equals."""


class Flame(Aggregator):
    """Mean of the largest cluster of directions, clipped to the median norm, with noise (Nguyen et al., 2022).

    HDBSCAN on the cosine distances of all pairs, with clusters of more than half of the clients, admits L of them. With
    S the median of all norms, `aggregate = 1/L sum_(i admitted) min(1, S / ||u_i||) u_i + N(0, (noise S)^2 I)`. The
    noise is the offset; the weight of a client contains its clipping.
    """

    works_on: ClassVar[Literal["updates", "products", "blocks"]] = "products"

    noise: float = Field(0.001, ge=0, description="deviation of the noise as a share of the median norm, lambda")

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """The clipped mean of the admitted, and the noise."""
        values, ids = updates.values, updates.round.clients.ids
        lengths = norms(values).cpu().numpy()
        median = float(np.median(lengths))
        admitted = majority(1.0 - cosines(values), ids)
        factors = np.divide(median, lengths, out=np.ones_like(lengths), where=lengths > median)
        weights = factors * admitted / admitted.sum()
        offset = self._noise(updates.round, median).to(values) if self.noise and median else None
        mean = weighted_sum(weights, values)
        return RuleResult(
            update=mean if offset is None else mean + offset,
            weights=torch.from_numpy(weights).to(values.device),
            offset=offset,
            state=state,
            notes={"admitted": float(admitted.sum()), "median_norm": median},
        )

    def _noise(self, current: Round, median: float) -> Tensor:
        generator = current.streams.generator("aggregation/flame", round_number=current.number)
        return torch.from_numpy(self.noise * median * generator.standard_normal(current.layout.size))


def majority(distances: Array, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Who is in the cluster of more than half of all; ties are broken by id, not by position."""
    from sklearn.cluster import HDBSCAN  # slow to import, and nobody else needs it

    clients = len(distances)
    if clients < 2:
        return np.ones(clients, np.bool_)
    by_id = np.argsort(ids)
    rounded = distances[np.ix_(by_id, by_id)].round(DIGITS)
    np.fill_diagonal(rounded, 0.0)
    clusters = HDBSCAN(
        min_cluster_size=clients // 2 + 1, min_samples=1, metric="precomputed", allow_single_cluster=True, copy=True
    )
    inside = np.zeros(clients, np.bool_)
    inside[by_id] = clusters.fit(np.maximum(rounded, rounded.T)).labels_ >= 0
    return inside if inside.any() else np.ones(clients, np.bool_)
