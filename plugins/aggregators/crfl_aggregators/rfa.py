"""Robust federated aggregation: the geometric median of the updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from crfl_aggregators.geometry import Array, central_products, squared_distances, weighted_sum
from crfl_core.extend import Aggregator, Clients, ClientUpdates, RuleResult, State, formulas

RESOLUTION = 1e-12
"""Smallest smoothing, relative to the largest distance: what double precision can tell apart from zero."""

HALF_THE_DIGITS = float(np.sqrt(np.finfo(np.float64).eps))


class Rfa(Aggregator):
    """Geometric median of the updates by smoothed Weiszfeld iterations (Pillutla et al., 2022).

    `aggregate = argmin_v sum_i a_i ||v - u_i||` with `a_i = n_i / sum_j n_j`, or `1 / n`. From the mean on, each
    iteration takes `v = sum_i p_i u_i` with `p_i ~ a_i / max(nu, ||v - u_i||)`. Smoothing `nu` and tolerance are
    relative to a scale, the radius of the smallest ball around a client that holds half of all: updates of any size are
    treated alike, and a minority of huge ones cannot make the scale meaningless.

    Notes in the ledger: `objective`, the value reached; `optimality_gap`, by duality no smaller than what was missed of
    the minimum, up to rounding (both in units of an update's norm); and `iterations`.
    """

    weighting: Literal["samples", "uniform"] = Field("samples", description="a_i by sample counts, or all equal")
    smoothing: float = Field(1e-6, gt=0, lt=1, description="nu, relative to the scale of the updates")
    tolerance: float = Field(
        1e-6, ge=0, description="stop when the optimality gap is below this, relative to the same scale"
    )
    iterations: int = Field(100, ge=1, description="Weiszfeld iterations at most")

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """The geometric median, with the weights of the last iteration."""
        samples = updates.round.clients.samples.astype(np.float64)
        prior = samples if self.weighting == "samples" else np.ones_like(samples)
        found = geometric_median(
            central_products(updates.values),
            prior / prior.sum(),
            smoothing=self.smoothing,
            tolerance=self.tolerance,
            iterations=self.iterations,
        )
        return RuleResult(
            update=weighted_sum(found.weights, updates.values),
            weights=torch.from_numpy(found.weights).to(updates.values.device),
            state=state,
            notes=found.notes,
        )

    def breakdown(self, clients: Clients, aggregate: RuleResult, update_bound: float) -> Array:
        """Attackers below half of the weight are outvoted, up to the optimality gap that was reached."""
        samples = clients.samples.astype(np.float64)
        prior = samples if self.weighting == "samples" else np.ones_like(samples)
        attacking = np.concatenate([[0.0], np.sort(prior / prior.sum())[::-1].cumsum()])
        # A gap is computed from squared distances: huge updates leave no more than half the digits of it.
        gap = aggregate.notes["optimality_gap"] + HALF_THE_DIGITS * aggregate.notes["objective"]
        drifts = np.asarray(formulas.approximate_geometric_median_drift(update_bound, attacking, gap))
        drifts[0] = 0.0  # nobody attacks, nothing changes
        return drifts


@dataclass(frozen=True)
class GeometricMedian:
    """A geometric median `sum_i weights[i] u_i`: the objective there, and a bound on what the minimum is below it."""

    weights: Array
    objective: float
    gap: float
    iterations: int

    @property
    def notes(self) -> dict[str, float]:
        """The figures for the ledger."""
        return {
            "objective": self.objective,
            "optimality_gap": self.gap,
            "iterations": float(self.iterations),
        }


def geometric_median(
    products: Array, prior: Array, *, smoothing: float, tolerance: float, iterations: int
) -> GeometricMedian:
    """Weiszfeld's algorithm on nothing but the products `G_ij = <u_i - u_c, u_j - u_c>` of all pairs."""
    distances = np.sqrt(squared_distances(products))
    spread = float(distances.max())
    if spread == 0:
        return GeometricMedian(prior, 0.0, 0.0, 0)
    scale = max(closest_half(distances), RESOLUTION * spread)
    nu = max(smoothing * scale, RESOLUTION * spread)
    weights, done = prior, 0
    while True:
        pull = prior / np.maximum(lengths(seen_from(products, weights)), nu)
        weights, done = pull / pull.sum(), done + 1
        objective, gap = optimality(seen_from(products, weights), prior, nu)
        if gap <= tolerance * scale or done == iterations:
            return GeometricMedian(weights, objective, gap, done)


def closest_half(distances: Array) -> float:
    """The radius of the smallest ball around a client that holds half of all."""
    return float(np.median(distances, axis=1).min())


def seen_from(products: Array, weights: Array) -> Array:
    """`<u_i - v, u_j - v>` for `v = sum_i weights[i] u_i` with weights that sum to 1."""
    toward = products @ weights
    result: Array = products - toward - toward[:, None] + weights @ toward
    return result


def lengths(products: Array) -> Array:
    """The lengths of vectors with these products."""
    return np.sqrt(np.maximum(np.diag(products), 0.0))


def optimality(products: Array, prior: Array, nu: float) -> tuple[float, float]:
    """The objective `g(v) = sum_i a_i ||u_i - v||`, and a bound on `g(v) - min g`, from the `<u_i - v, u_j - v>`.

    By duality `min g >= sum_i a_i <y_i, u_i - v>` for any `||y_i|| <= 1` with `sum_i a_i y_i = 0`. Directions
    `z_i = (u_i - v) / max(nu, ||u_i - v||)` with mean `s = sum_i a_i z_i` give such `y_i = (z_i - s) / (1 + ||s||)`.
    """
    away = lengths(products)
    objective = float(prior @ away)
    slopes = prior / np.maximum(away, nu)
    residual = products @ slopes  # <u_i - v, s>
    length = math.sqrt(max(float(slopes @ residual), 0.0))
    bound = (slopes @ away**2 - prior @ residual) / (1.0 + length)
    return objective, max(objective - float(bound), 0.0)
