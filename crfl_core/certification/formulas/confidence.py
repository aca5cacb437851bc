"""Confidence bounds on the probabilities of classes, from counts of votes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Bounds(NamedTuple):
    """`first` is the class with most votes; `p_a` bounds its probability from below, `p_b` all others' from above."""

    first: NDArray[np.int64]
    p_a: Array
    p_b: Array


def hoeffding(counts: NDArray[np.int64], alpha: float) -> Bounds:
    """The paper's bounds (Section 3.2): `p_A = n_A / M - sqrt(log(1/alpha) / 2M)`, `p_B = n_B / M + sqrt(...)`.

    `counts` is (m, C) with the votes of M models in each row. Each bound fails with probability at most alpha for a
    fixed class. Both are clamped to [0, 1]. The paper prints N, the number of clients, in place of M.

    >>> hoeffding(np.array([[1000, 0, 0]]), alpha=0.001).p_a.round(5)
    array([0.94123])
    """
    models = counts.sum(axis=1)
    slack = np.sqrt(np.log(1.0 / alpha) / (2.0 * models))
    ordered = np.sort(counts, axis=1)
    p_a = np.clip(ordered[:, -1] / models - slack, 0.0, 1.0)
    p_b = np.clip(ordered[:, -2] / models + slack, 0.0, 1.0)
    return Bounds(counts.argmax(axis=1), p_a, p_b)
