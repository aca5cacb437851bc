"""From votes to the strongest attack that cannot change them: docs/certificates.md#which-drift-a-prediction-stands.

`p_a` bounds the probability of the predicted class from below, `p_b` that of any other class from above. All rules are
strict, so thresholds are open: an attack *below* the threshold is certified, one that reaches it is not, and a
threshold of 0 certifies nothing. `certified_size` turns a threshold into the largest attack that is certified.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri, ndtri_exp

from crfl_core.certification.formulas._arrays import Array, floats
from crfl_core.certification.formulas.paper import kl_budget

ROUNDING = 1e-13
"""Relative allowance for the rounding of thresholds and of the drifts that they are compared with."""
FARTHEST = 80.0
"""A budget beyond every finite threshold: normal quantiles of floating-point numbers end at 38.5."""
BISECTIONS = 60


def gaussian_threshold(p_a: ArrayLike, p_b: ArrayLike) -> Array:
    """`mu* = (Phi^-1(p_A) - Phi^-1(p_B)) / 2`: below it, a trade-off budget cannot change the vote.

    Exact for shifted Gaussians. 0 where `p_a <= p_b`, infinite for `p_a = 1` or `p_b = 0`.

    >>> gaussian_threshold([0.7, 0.5, 1.0], [0.1, 0.5, 0.0]).round(12)
    array([0.90297604, 0.        ,        inf])
    """
    first, second = floats(p_a, p_b)
    with np.errstate(invalid="ignore"):
        return np.where(first > second, (ndtri(first) - ndtri(second)) / 2.0, 0.0)[()]


def gaussian_threshold_of_logs(log_p_a: ArrayLike, log_rest: ArrayLike, log_p_b: ArrayLike) -> Array:
    """`mu*` from log p_A, log(1 - p_A) and log p_B, for votes that are too clear for floating-point probabilities.

    >>> gaussian_threshold_of_logs(-1e-300, np.log(1e-300), np.log(1e-300)).round(9)
    np.float64(37.047096299)
    """
    first, rest, second = floats(log_p_a, log_rest, log_p_b)
    likely = rest < -math.log(2.0)
    with np.errstate(invalid="ignore"):
        upper = np.where(likely, -ndtri_exp(rest), ndtri_exp(first))
        return np.where(first > second, (upper - ndtri_exp(second)) / 2.0, 0.0)[()]


def kl_threshold(p_a: ArrayLike, p_b: ArrayLike) -> Array:
    """`sqrt(2 eps)`: the paper's KL rule in units of mu, for comparison. At most 0.9 times `gaussian_threshold`.

    >>> kl_threshold(0.7, 0.1).round(12)
    np.float64(0.794827587856)
    """
    return np.sqrt(2.0 * kl_budget(p_a, p_b))


def margin_threshold(logits: ArrayLike, input_norms: ArrayLike) -> Array:
    """`min_c (z_A - z_c) / (sqrt 2 ||x~||)`: the drift of a linear model's parameters below which no logit overtakes.

    Pathwise, without noise, and exact. `logits` is (..., C); they may come from the aggregate before its clip, which
    rescales all of them. 0 for ties; an input of norm 0 always is one.

    >>> margin_threshold([[2.0, 0.5, 1.0], [1.0, 1.0, 0.0]], [1.0, 1.0]).round(6)
    array([0.707107, 0.      ])
    """
    values, norms = floats(logits, input_norms)
    top = np.partition(values, -2, axis=-1)[..., -2:]
    margin = top[..., 1] - top[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(margin > 0, margin / (math.sqrt(2.0) * norms), 0.0)[()]


def marginal_threshold(p_a: ArrayLike, p_b: ArrayLike, failure: float) -> Array:
    """The largest `mu` that leaves the vote unchanged if a bound behind mu fails with probability `failure` d.

    Certified are mu with `(1-d) Phi(Phi^-1((p_A-d)/(1-d)) - mu) > (1-d) Phi(Phi^-1(p_B/(1-d)) + mu) + d`: on the event
    that the bound holds, at least `p_A - d` of the votes for A and at most p_B of those for B remain, and the rest may
    go to B. The lower end of a bisection, so never above the exact threshold.

    >>> marginal_threshold(0.7, 0.1, 1e-3).round(6), marginal_threshold(0.7, 0.1, 0.0).round(6)
    (np.float64(0.900911), np.float64(0.902976))
    """
    if failure == 0.0:
        return gaussian_threshold(p_a, p_b)
    first, second = floats(p_a, p_b)
    holds = 1.0 - failure
    z_a = ndtri(np.clip((first - failure) / holds, 0.0, 1.0))
    z_b = ndtri(np.clip(second / holds, 0.0, 1.0))

    def certified(mu: Array | float) -> NDArray[np.bool_]:
        return np.greater(holds * ndtr(z_a - mu), holds * ndtr(z_b + mu) + failure)

    low = np.zeros(np.broadcast(first, second).shape)
    with np.errstate(invalid="ignore"):
        high = np.where(z_a > z_b, np.minimum((z_a - z_b) / 2.0, FARTHEST), 0.0)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        inside = certified(middle)
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.where(certified(FARTHEST), np.inf, low)[()]


def certified_size(threshold: ArrayLike, per_unit: ArrayLike = 1.0) -> Array:
    """The largest attack that stays below a threshold, `threshold / per_unit`, if an attack of size 1 costs `per_unit`.

    Rounded down, so the size itself is certified. NaN where the threshold is 0: nothing is certified, not even the
    absence of an attack. Infinite for an infinite threshold, or where attacks cost nothing.

    >>> certified_size([0.902976, 0.0, np.inf], per_unit=100.0).round(8)
    array([0.00902976,        nan,        inf])
    """
    limit, unit = floats(threshold, per_unit)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        size = limit / unit * (1.0 - ROUNDING)
    return np.where(limit > 0, np.where((unit > 0) & ~np.isposinf(limit), size, np.inf), np.nan)[()]
