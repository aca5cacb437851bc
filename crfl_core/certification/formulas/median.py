"""The median of models that clients send once: docs/certificates/every-round.md#a-median-of-local-models.

Every client trains a linear model by itself, the server takes the median of each weight. R of N clients that send
anything else move a median by no more than R ranks, so it stays in a box that the models themselves show, and logits
over a box are bounded exactly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfl_core.certification.formulas._arrays import Array, floats
from crfl_core.certification.formulas.rounding import gamma


class Box(NamedTuple):
    """Every weight lies between its `lower` and its `upper` end."""

    lower: Array
    upper: Array


def median_box(models: ArrayLike, attackers: int) -> Box:
    """Where the median of `models` (N, ...) can be if any R of them are replaced by anything.

    Between the order statistics R ranks below and above the median; for an even N, between the means of those of both
    middle ranks. Infinite where there are none. With R = 0 both ends are the median, up to rounding.

    >>> median_box([[1.0], [2.0], [4.0], [8.0], [9.0]], attackers=1)
    Box(lower=array([2.]), upper=array([8.]))
    """
    return _box(np.sort(_finite(models), axis=0), attackers)


def median_count(models: ArrayLike, inputs: ArrayLike) -> tuple[NDArray[np.int64], Array]:
    """What the median of linear models (N, C, d) predicts for `inputs` (m, d), and how many clients it stands.

    R is certified if the smallest logit of the predicted class over the box exceeds the largest of every other. NaN for
    a tie. N is fixed: whoever sends nothing, or something that is not finite, counts with a fixed public model.

    >>> votes = [[[1.0], [0.0]]] * 4 + [[[0.0], [1.0]]]
    >>> [found.tolist() for found in median_count(votes, [[1.0], [-1.0]])]
    [[0, 1], [1.0, 1.0]]
    """
    (x,) = floats(inputs)
    given = _finite(models)
    first = (x @ np.median(given, axis=0).T).argmax(axis=1)
    ordered = np.sort(given, axis=0)
    found = np.full(len(x), np.nan)
    rows = np.arange(len(x))
    for attackers in range((len(given) + 1) // 2):
        rows = rows[_stands(_box(ordered, attackers), x[rows], first[rows])]
        found[rows] = attackers
        if len(rows) == 0:
            break
    return first, found


def _box(ordered: Array, attackers: int) -> Box:
    count = len(ordered)
    below = (count - 1) // 2 - attackers
    above = count // 2 + attackers
    if below < 0:
        return Box(np.full(ordered.shape[1:], -np.inf), np.full(ordered.shape[1:], np.inf))
    if count % 2:
        return Box(ordered[below], ordered[above])
    low = (ordered[below] + ordered[below + 1]) / 2.0
    high = (ordered[above - 1] + ordered[above]) / 2.0
    return Box(np.nextafter(low, -np.inf), np.nextafter(high, np.inf))


def _stands(box: Box, x: Array, first: NDArray[np.int64]) -> NDArray[np.bool_]:
    positive = np.maximum(x, 0.0)
    negative = np.maximum(-x, 0.0)
    size = np.abs(x) @ np.maximum(np.abs(box.lower), np.abs(box.upper)).T
    unsure = gamma(2 * x.shape[1] + 8) * size
    lowest = positive @ box.lower.T - negative @ box.upper.T - unsure
    highest = positive @ box.upper.T - negative @ box.lower.T + unsure
    own = np.take_along_axis(lowest, first[:, None], axis=1)[:, 0]
    np.put_along_axis(highest, first[:, None], -np.inf, axis=1)
    stands: NDArray[np.bool_] = own > highest.max(axis=1)
    return stands


def _finite(models: ArrayLike) -> Array:
    (given,) = floats(models)
    if not np.isfinite(given).all():
        raise ValueError("models must be finite: put a fixed public one in place of those that are not")
    return given
