"""Confidence bounds on the probabilities of classes, from votes: docs/certificates.md#confidence.

`counts` is (m, C): how many of a sample's M models chose each class. Every recipe but the paper's fails with
probability at most alpha per sample, over the draw of the models. The same models vote on all samples, so failures are
correlated: for a simultaneous statement about m samples use alpha / m. Bounds are rounded outward.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfl_core.certification.formulas import _special as special
from crfl_core.certification.formulas._arrays import Array, floats
from crfl_core.certification.formulas.rounding import UNIT_ROUNDOFF

Counts = NDArray[np.int64]


class Bounds(NamedTuple):
    """`first` is the class with most votes; `p_a` bounds its probability from below, `p_b` all others' from above."""

    first: NDArray[np.int64]
    p_a: Array
    p_b: Array

    @property
    def abstains(self) -> NDArray[np.bool_]:
        """Return where the vote is too close to predict, `p_a <= p_b`."""
        return np.less_equal(self.p_a, self.p_b)


def hoeffding(counts: Counts, alpha: float) -> Bounds:
    """Bound the probabilities as the paper does (Section 3.2), by Hoeffding's inequality.

    `p_A = n_A / M - sqrt(log(1/alpha) / 2M)`, `p_B = n_B / M + sqrt(log(1/alpha) / 2M)`.
    Each bound fails with probability at most alpha for a fixed class, not for the pair and not for classes that are
    chosen by the same votes. Both are clamped to [0, 1]. The paper prints N, the number of clients, in place of M.

    >>> hoeffding(np.array([[1000, 0, 0]]), alpha=0.001).p_a.round(5)
    array([0.94123])
    """
    models = counts.sum(axis=1)
    slack = np.sqrt(np.log(1.0 / alpha) / (2.0 * models)) + 8.0 * UNIT_ROUNDOFF
    ordered = np.sort(counts, axis=1)
    p_a = np.clip(ordered[:, -1] / models - slack, 0.0, 1.0)
    p_b = np.clip(ordered[:, -2] / models + slack, 0.0, 1.0)
    return Bounds(counts.argmax(axis=1), p_a, p_b)


def clopper_pearson_lower(successes: ArrayLike, trials: ArrayLike, alpha: float) -> Array:
    """Bound a probability from below by its successes.

    The bound is wrong with probability at most alpha.

    The probability at which this number of successes or more occurs with probability alpha; 0 for no success.

    >>> clopper_pearson_lower([0, 990, 1000], 1000, 0.0005).round(6)
    array([0.      , 0.974937, 0.992428])
    """
    k, n = floats(successes, trials)
    inner = special.betaincinv(np.maximum(k, 1.0), n - k + 1.0, alpha)
    unanimous = np.exp(math.log(alpha) / np.maximum(n, 1.0))
    found = np.where(k == n, unanimous, inner)
    return np.where(k == 0, 0.0, np.maximum(found - _inaccuracy(found, n), 0.0))[()]


def clopper_pearson_upper(successes: ArrayLike, trials: ArrayLike, alpha: float) -> Array:
    """Bound a probability from above by its successes.

    The bound is wrong with probability at most alpha.

    The probability at which this number of successes or fewer occurs with probability alpha; 1 if all succeed.

    >>> clopper_pearson_upper([0, 6, 1000], 1000, 0.0005).round(6)
    array([0.007572, 0.018931, 1.      ])
    """
    k, n = floats(successes, trials)
    inner = special.betainccinv(k + 1.0, np.maximum(n - k, 1.0), alpha)
    none = -np.expm1(math.log(alpha) / np.maximum(n, 1.0))
    found = np.where(k == 0, none, inner)
    return np.where(k == n, 1.0, np.minimum(found + _inaccuracy(found, n), 1.0))[()]


def two_stage(selection_counts: Counts, counts: Counts, alpha: float) -> Bounds:
    """Select the class by some models, bound probabilities by others.

    The bounds come from the votes of the others. `p_A` is Clopper-Pearson at alpha/2, `p_B` the largest of the other C
    - 1 classes' at alpha / (2 (C - 1)), and at most 1 - p_A.

    >>> two_stage(np.array([[90, 10, 0]]), np.array([[990, 6, 4]]), alpha=0.001).p_b.round(6)
    array([0.019888])
    """
    first = selection_counts.argmax(axis=1)
    models = counts.sum(axis=1)
    classes = counts.shape[1]
    own = np.take_along_axis(counts, first[:, None], axis=1)[:, 0]
    others = counts.copy()
    np.put_along_axis(others, first[:, None], -1, axis=1)
    p_a = clopper_pearson_lower(own, models, alpha / 2.0)
    p_b = clopper_pearson_upper(others.max(axis=1), models, alpha / (2.0 * (classes - 1)))
    return Bounds(first, p_a, np.minimum(p_b, 1.0 - p_a))


def one_stage(counts: Counts, alpha: float) -> Bounds:
    """Select and bound by the same votes.

    Here `p_B = 1 - p_A`, so the result is certain only if `p_A` is above 1/2. Clopper-Pearson at alpha/2, and no
    correction for the number of classes: votes cannot exceed one half for several of them, and the probability of a
    wrong excess is convex below 1/2.

    >>> one_stage(np.array([[1000, 0, 0]]), alpha=0.001).p_a.round(6)
    array([0.992428])
    """
    p_a = clopper_pearson_lower(counts.max(axis=1), counts.sum(axis=1), alpha / 2.0)
    return Bounds(counts.argmax(axis=1), p_a, 1.0 - p_a)


def one_stage_bonferroni(counts: Counts, alpha: float) -> Bounds:
    """Select and bound by the same votes, for all classes.

    Both bounds hold for all C classes at once, at alpha / (2 C) each. Certifies below one half, where `one_stage`
    cannot.

    >>> bounds = one_stage_bonferroni(np.array([[480, 300, 220]]), alpha=0.001)
    >>> bool(bounds.abstains[0]), bool(one_stage(np.array([[480, 300, 220]]), alpha=0.001).abstains[0])
    (False, True)
    """
    models = counts.sum(axis=1)
    level = alpha / (2.0 * counts.shape[1])
    ordered = np.sort(counts, axis=1)
    p_a = clopper_pearson_lower(ordered[:, -1], models, level)
    p_b = clopper_pearson_upper(ordered[:, -2], models, level)
    return Bounds(counts.argmax(axis=1), p_a, np.minimum(p_b, 1.0 - p_a))


def _inaccuracy(probability: Array, trials: Array) -> Array:
    """Return the possible error of the inverse incomplete beta function.

    Tests find a third of it.
    """
    return UNIT_ROUNDOFF * (8.0 + (64.0 + trials / 64.0) * probability)
