"""From votes to the strongest attack that cannot change them: docs/certificates.md#which-drift-a-prediction-tolerates.

`p_a` bounds the probability of the predicted class from below, `p_b` that of any other class from above. All rules are
strict, so thresholds are open: an attack *below* the threshold is certified, one that reaches it is not, and a
threshold of 0 certifies nothing. `largest_attack` turns a threshold into the largest attack that is certified.

Thresholds are rounded to the safe side: arguments are taken for exact, and no threshold is above that of exact
arithmetic, near ties as well (docs/certificates.md#rounding).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from crfl_core.certification.formulas import _special as special
from crfl_core.certification.formulas._arrays import Array, floats
from crfl_core.certification.formulas.rounding import SHORTEST_INPUT, UNIT_ROUNDOFF, gamma, logit_rounding

QUANTILE = 16.0 * UNIT_ROUNDOFF
"""Relative error of normal quantiles, from probabilities or their logarithms; tests find a quarter of it."""
FORMULAS = 512
"""More roundings than any formula has beside its sums over clients, rounds, steps and parameters."""
NEWTON_BELOW = -500.0
"""Logarithms of probabilities below which `ndtri_exp` stops too early: one more step of Newton's settles it."""


def gaussian_threshold(p_a: ArrayLike, p_b: ArrayLike) -> Array:
    """Return mu*, the trade-off budget below which a vote cannot change.

    `mu* = (Phi^-1(p_A) - Phi^-1(p_B)) / 2`.
    Exact for shifted Gaussians. 0 where `p_a <= p_b`, infinite for `p_a = 1` or `p_b = 0`.

    >>> gaussian_threshold([0.7, 0.5, 1.0], [0.1, 0.5, 0.0]).round(12)
    array([0.90297604, 0.        ,        inf])
    """
    first, second = floats(p_a, p_b)
    return _half_distance(special.ndtri(first), special.ndtri(second), first > second)


def gaussian_threshold_of_logs(log_p_a: ArrayLike, log_rest: ArrayLike, log_p_b: ArrayLike) -> Array:
    """Return mu* from log p_A, log(1 - p_A) and log p_B.

    For votes that are too clear for floating-point probabilities.

    >>> gaussian_threshold_of_logs(-1e-300, np.log(1e-300), np.log(1e-300)).round(9)
    np.float64(37.047096299)
    """
    first, rest, second = floats(log_p_a, log_rest, log_p_b)
    likely = rest < -math.log(2.0)
    upper = np.where(likely, -_quantile_of_log(rest), _quantile_of_log(first))
    return _half_distance(upper, _quantile_of_log(second), first > second)


def margin_threshold(
    logits: ArrayLike, input_norms: ArrayLike, *, features: int = 0, model_norm: ArrayLike = 0.0
) -> Array:
    """Return the parameter drift below which no logit overtakes.

    The model is linear, and the threshold is `min_c (z_A - z_c) / (sqrt 2 ||x~||)`. Pathwise, without noise, and exact.
    `logits` is (..., C); they may come from the aggregate before its clip, which rescales all of them. 0 for ties; an
    input of norm 0 always is one, and inputs shorter than `SHORTEST_INPUT` and logits that overflow count as ties.
    Logits and norms that were computed in float64 need `features` and `model_norm` (Frobenius): then no logit overtakes
    in computed predictions either.

    >>> margin_threshold([[2.0, 0.5, 1.0], [1.0, 1.0, 0.0]], [1.0, 1.0]).round(6)
    array([0.707107, 0.      ])
    """
    values, norms = floats(logits, input_norms)
    top = np.partition(values, -2, axis=-1)[..., -2:]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        margin = top[..., 1] - top[..., 0]
        certain = (margin > 0) & np.isfinite(margin) & np.isfinite(values).all(axis=-1) & (norms >= SHORTEST_INPUT)
        drift = np.where(certain, margin / (math.sqrt(2.0) * norms), 0.0)
        return np.maximum(drift * (1.0 - gamma(2 * features + 32)) - logit_rounding(features, model_norm), 0.0)[()]


def largest_attack(
    threshold: ArrayLike, per_unit: ArrayLike = 1.0, *, rounding: ArrayLike = 0.0, terms: int = 0
) -> Array:
    """Return the largest attack below a threshold, `threshold / per_unit`.

    An attack of size 1 costs `per_unit`.
    `rounding` is subtracted from the threshold first: what floating-point training adds to an attack, see
    `rounding_drift`. `terms` says how many numbers (clients, rounds, steps, parameters) were added up for what
    the size will be compared with, so it stays certified although those sums were rounded. NaN where nothing is left
    of the threshold: nothing is certified, not even the absence of an attack. Infinite for an infinite threshold, or
    where attacks cost nothing.

    >>> largest_attack([0.902976, 0.0, np.inf], per_unit=100.0).round(8)
    array([0.00902976,        nan,        inf])
    >>> largest_attack([0.902976, 1e-10], rounding=1e-9).round(8)
    array([0.902976,      nan])
    """
    limit, unit, less = floats(threshold, per_unit, rounding)
    limit = limit - less
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        size = limit / unit * (1.0 - gamma(FORMULAS + terms))
    return np.where(limit > 0, np.where((unit > 0) & ~np.isposinf(limit), size, np.inf), np.nan)[()]


def _half_distance(upper: Array, lower: Array, certain: ArrayLike) -> Array:
    """Return half the distance of two quantiles, rounded down.

    It is 0 where not certain.
    """
    with np.errstate(invalid="ignore"):
        unsure = QUANTILE * (np.abs(upper) + np.abs(lower))
        distance = np.where(np.isinf(unsure), upper - lower, upper - lower - unsure)
        return np.where(certain, np.maximum(distance / 2.0, 0.0), 0.0)[()]


def _quantile_of_log(log_p: Array) -> Array:
    """Return `Phi^-1(exp(log_p))`, also where exp underflows."""
    z = np.asarray(special.ndtri_exp(log_p))
    deep = (log_p < NEWTON_BELOW) & np.isfinite(z)
    start = np.where(deep, z, -1.0)
    mills = math.sqrt(math.pi / 2.0) * special.erfcx(-start / math.sqrt(2.0))
    return np.where(deep, z - (special.log_ndtr(start) - np.where(deep, log_p, 0.0)) * mills, z)
