"""FLAME: keep the majority that pulls in about the same direction, clip it, and hide the rest behind noise."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from crfl_aggregators.geometry import Array, cosines, linear_combination, norms
from crfl_core.extend import Aggregator, ClientUpdates, Round, RuleResult, State

DISTANCE_DIGITS = 12
"""Decimal places of cosine distances that count: what comes behind is rounding, and must not decide between equals."""


class Flame(Aggregator):
    """Mean of the largest cluster of directions, clipped to the median norm, with noise (Nguyen et al., 2022).

    HDBSCAN on the cosine distances of all pairs, with clusters of more than half of the clients, admits L of them. With
    S the median of all norms, `aggregate = 1/L sum_(i admitted) min(1, S / ||u_i||) u_i + N(0, (noise S)^2 I)`. The
    noise is the offset; the weight of a client contains its clipping.
    """

    noise: float = Field(0.001, ge=0, description="deviation of the noise as a share of the median norm, lambda")

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """Average the admitted updates, clipped, and add the noise."""
        values = updates.values
        lengths = norms(values).cpu().numpy()
        median = float(np.median(lengths))
        admitted = majority_cluster(cosines(values))
        factors = np.divide(median, lengths, out=np.ones_like(lengths), where=lengths > median)
        weights = factors * admitted / admitted.sum()
        offset = self._noise(updates.round, median).to(values) if self.noise and median else None
        mean = linear_combination(weights, values)
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


def majority_cluster(similarity: Array) -> NDArray[np.bool_]:
    """Find the first cluster of more than half of all clients.

    Single linkage builds clusters from the cosines of all pairs.

    HDBSCAN with such clusters answers the same: none can split in two, so it knows one, from which clients fall away as
    distances become smaller, until it would be too small.
    """
    clients = len(similarity)
    component = np.arange(clients)
    last = -1.0
    for distance, one, other in sorted(spanning_tree(similarity)):
        most = np.bincount(component).argmax()
        if distance > last and (component == most).sum() > clients // 2:
            break
        component[component == component[one]] = component[other]
        last = distance
    inside: NDArray[np.bool_] = component == np.bincount(component).argmax()
    return inside


def spanning_tree(similarity: Array) -> list[tuple[float, int, int]]:
    """Find the edges of a minimum spanning tree by cosine distance.

    The edges have their lengths (Prim, 1957). The tree has an edge between any two clusters that single linkage joins.
    """
    clients = len(similarity)
    distance = np.full(clients, np.inf)
    neighbour = np.zeros(clients, np.int64)
    outside = np.ones(clients, np.bool_)
    newest = 0
    edges = []
    for _ in range(clients - 1):
        outside[newest] = False
        away = (1.0 - np.minimum(similarity[newest], similarity[:, newest])).round(DISTANCE_DIGITS)
        nearer = outside & (away < distance)
        distance[nearer] = away[nearer]
        neighbour[nearer] = newest
        newest = int(np.where(outside, distance, np.inf).argmin())
        edges.append((float(distance[newest]), int(neighbour[newest]), newest))
    return edges
