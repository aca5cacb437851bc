"""Robust federated aggregation: the geometric median of the updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from crfl_aggregators.geometry import Array, CentralView, central_view, distance_rows, row_blocks
from crfl_core.extend import Clients, ClientUpdates, RuleResult, State, WeightedRule, Weighting

LENGTH_PRECISION = float(np.sqrt(np.finfo(np.float64).eps))
"""Relative error of a length that is computed from squares in double precision."""

MAX_START_DISTANCE = 1e3
"""Distance, in units of the scale, by which an update may draw the point from which iterations start."""

MAJORITY_SHARE = 0.5 * (1 + 1e-12)
"""More of the weight than this is more than half of it, however shares were rounded."""


class Rfa(WeightedRule):
    """Geometric median of the updates by smoothed Weiszfeld iterations (Pillutla et al., 2022).

    `aggregate = argmin_v sum_i a_i ||v - u_i||` with `a_i = n_i / sum_j n_j`, or `1 / n`. From the mean on, each
    iteration takes `v = sum_i p_i u_i` with `p_i ~ a_i / max(nu, ||v - u_i||)`. Smoothing `nu` and tolerance are
    relative to a scale, the radius of the smallest ball around a client that holds more than half of the weight:
    updates of any size are treated alike.

    If a share `m > 1/2` of the weight lies within r of some point, the minimum is at most `r m / sqrt(2m - 1)` from it,
    wherever the other updates are (Minsker, 2015): of an update far away only the direction counts. Rounding is
    relative to the distances of the majority, for finite updates of any length, and in the mean that begins the
    iterations nothing counts as farther than 1000 scales from that ball's centre. If more than half of the weight lies
    in one point, it is the minimum.

    Notes in the ledger: `objective`, the value reached; `optimality_gap`, no smaller than what was missed of the
    minimum, up to rounding (1e-7 of the majority's lengths); `nearest_half`, a distance from the aggregate within
    which half of the clients lie, rounding included; and `iterations`. While fewer than half of the clients are
    malicious and no honest update is longer than U, the aggregate is at most `2 U + nearest_half` from that of the
    honest clean world.
    """

    weighting: Literal["samples", "uniform"] = Field("samples", description="a_i by sample counts, or all equal")
    smoothing: float = Field(1e-6, gt=0, lt=1, description="nu, relative to the scale of the updates")
    tolerance: float = Field(
        1e-6, ge=0, description="stop when the optimality gap is below this, relative to the same scale"
    )
    iterations: int = Field(100, ge=1, description="Weiszfeld iterations at most")

    def weigh(self, updates: ClientUpdates, state: State) -> Weighting:
        """Compute the geometric median; return the weights of the last iteration."""
        samples = updates.round.clients.samples.astype(np.float64)
        prior = samples if self.weighting == "samples" else np.ones_like(samples)
        seen = central_view(updates.values)
        found = geometric_median(
            seen,
            prior / prior.sum(),
            smoothing=self.smoothing,
            tolerance=self.tolerance,
            iterations=self.iterations,
        )
        weights = found.weights * seen.factors
        return Weighting(weights, state, found.notes | {"nearest_half": nearest_half(found, seen)})

    def breakdown(self, clients: Clients, aggregate: RuleResult, update_bound: float) -> Array:  # noqa: ARG002
        """Bound the drift while fewer than half of the clients are malicious.

        The bound is `2 U + nearest_half`. One of the half that is nearest to the aggregate is honest, so the aggregate
        is at most `U + nearest_half` long. In the honest clean world it is an average of updates, at most U long.
        """
        drift = 2.0 * update_bound + aggregate.notes["nearest_half"]
        return np.array([0.0] + [drift] * ((len(aggregate.weights) - 1) // 2))


@dataclass(frozen=True)
class GeometricMedian:
    """Geometric median `sum_i weights[i] u_i`, and the distances of the updates from it.

    `objective` is the weighted mean of these distances, and `gap` a bound on how far the minimum is below it.
    """

    weights: Array
    distances: Array
    objective: float
    gap: float
    iterations: int

    @property
    def notes(self) -> dict[str, float]:
        """Return the figures for the ledger."""
        return {
            "objective": self.objective,
            "optimality_gap": self.gap,
            "iterations": float(self.iterations),
        }


def geometric_median(
    seen: CentralView, prior: Array, *, smoothing: float, tolerance: float, iterations: int
) -> GeometricMedian:
    """Run Weiszfeld's algorithm on nothing but the products of all pairs.

    An update at a distance d has a weight in proportion to 1 / d, so what it adds to products with others is as small
    as theirs, however far it is: rounding is relative to the distances of the majority.
    """
    products = seen.products
    squares = np.diag(seen.products)
    blocks = (np.sqrt(distance_rows(products, squares, rows)) for rows in row_blocks(products))
    radii = np.concatenate([majority_radius(distances, prior) for distances in blocks])
    centre = int(radii.argmin())
    scale = float(radii.min())
    apart = np.sqrt(distance_rows(products, squares, slice(centre, centre + 1)))[0]
    if scale == 0:
        together = np.where(apart == 0, prior, 0.0)
        return GeometricMedian(together / together.sum(), apart, float(prior @ apart), 0.0, 0)
    nu = max(smoothing * scale, LENGTH_PRECISION * float(majority_radius(seen.lengths, prior)))
    weights = np.minimum(1.0, MAX_START_DISTANCE * scale / np.maximum(apart, scale)) * prior
    weights[centre] += 1.0 - weights.sum()
    around = Viewpoint.from_weights(products, weights)
    done = 0
    gap = np.inf
    while done < iterations and gap > tolerance * scale:
        pull = prior / np.maximum(around.lengths, nu)
        weights = pull / pull.sum()
        done = done + 1
        around = Viewpoint.from_weights(products, weights)
        gap = optimality_gap(around, prior, nu)
    return GeometricMedian(weights, around.lengths, float(prior @ around.lengths), gap, done)


def majority_radius(distances: Array, prior: Array) -> Array:
    """Return the least distance that holds more than half the weight.

    It is computed along the last axis.
    """
    order = np.argsort(distances, axis=-1)
    enough = np.argmax(prior[order].cumsum(axis=-1) > MAJORITY_SHARE, axis=-1)[..., None]
    nearest: Array = np.take_along_axis(distances, np.take_along_axis(order, enough, axis=-1), axis=-1)[..., 0]
    return nearest


@dataclass(frozen=True)
class Viewpoint:
    """Updates as seen from `v = sum_i weights[i] u_i`, with weights that sum to 1.

    `toward` are the products `<u_i, v>`, `square` is `<v, v>`, and `lengths` are all `||u_i - v||`. The products as
    seen from v are made some rows at a time: all of them would be as large as those that they come from.
    """

    products: Array
    toward: Array
    square: float
    lengths: Array

    @staticmethod
    def from_weights(products: Array, weights: Array) -> Viewpoint:
        """Compute the view from the products of all pairs."""
        toward = products @ weights
        square = float(weights @ toward)
        squares = np.diag(products) - toward - toward + square
        return Viewpoint(products, toward, square, np.sqrt(np.maximum(squares, 0.0)))

    def product_rows(self, rows: slice) -> Array:
        """Compute `<u_i - v, u_j - v>`, (rows, n).

        i runs over the rows, j over all clients.
        """
        result: Array = self.products[rows] - self.toward
        result -= self.toward[rows, None]
        result += self.square
        return result

    def length_of(self, factors: Array) -> float:
        """Compute `||sum_i factors[i] (u_i - v)||`."""
        square = sum(float(factors[rows] @ (self.product_rows(rows) @ factors)) for rows in row_blocks(self.products))
        return float(np.sqrt(max(square, 0.0)))


def optimality_gap(around: Viewpoint, prior: Array, nu: float) -> float:
    """Bound the distance of the objective at v from its minimum.

    This is `g(v) - min g` for `g(v) = sum_i a_i ||u_i - v||`, as seen from v.

    For any `||z_i|| <= 1` with mean `s = sum_i a_i z_i`, `min g >= sum_i a_i <z_i, u_i - v> - ||s|| D` if the minimum
    is at most D away from v. Here `z_i = (u_i - v) / max(nu, ||u_i - v||)`. And if a weight `m > 1/2` lies within r of
    v, `D <= r m / sqrt(2m - 1)` (Minsker): seen from the minimum, at a distance D > r, the angle between v and each of
    these has at least the cosine `sqrt(1 - r^2 / D^2)`, and were m times this more than `1 - m`, a step toward v would
    lower g. Both stay as they are if an update moves away from v.
    """
    away = around.lengths
    slope = around.length_of(prior / np.maximum(away, nu))
    near = np.minimum(away, nu)
    smoothed = float(prior @ (near * (1 - near / nu)))
    order = np.argsort(away)
    held = prior[order].cumsum()
    most = held > MAJORITY_SHARE
    reach = away[order][most] * held[most] / np.sqrt(2 * held[most] - 1)
    return smoothed + slope * float(reach.min())


def nearest_half(found: GeometricMedian, seen: CentralView) -> float:
    """Return a distance within which half of the updates lie, rounding included.

    Updates that products cannot tell apart from infinity do not count.
    """
    hidden = seen.resolution * (seen.lengths + found.weights @ seen.lengths)
    upper = np.where(seen.factors < 1, np.inf, found.distances + hidden)
    return min(float(np.sort(upper)[(len(upper) - 1) // 2]), float(np.finfo(np.float64).max))
