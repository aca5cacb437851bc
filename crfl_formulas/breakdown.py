"""Drift bounds for aggregators that look at the updates: docs/certificates.md#aggregators-that-look-at-the-updates.

Their weights differ between the two worlds, so the bounds of fixed weights do not apply, nor does any statement about
a single run. What holds: if no honest update (or centred residual, with equal weight decay for all) is longer than
`update_bound` U, attackers of any kind move the aggregate of one round by at most this much against the honest clean
world. Use it with noise that is drawn again from the attacked round on.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from crfl_formulas._arrays import Array, floats


def approximate_geometric_median_drift(
    update_bound: ArrayLike, attacking_weight: ArrayLike, objective_gap: ArrayLike
) -> Array:
    """`U + (2 (1 - a) U + e) / (1 - 2 a)` for a point whose weighted sum of distances is within e of the minimum.

    The gap must be checked in the round, for weights that sum to 1; a fixed number of iterations has none. The clean
    world's point is assumed to be an average of updates, as Weiszfeld's iterates are.

    >>> approximate_geometric_median_drift(1.0, 0.25, 0.1)
    np.float64(4.2)
    """
    bound, a, gap = floats(update_bound, attacking_weight, objective_gap)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(a < 0.5, bound + (2.0 * (1.0 - a) * bound + gap) / (1.0 - 2.0 * a), np.inf)[()]


def krum_drift(update_bound: ArrayLike, clients: int, attackers: int) -> Array:
    """`2 U + 2 U sqrt((N - R - 2) / (N - 2 R - 1))` for Krum that expects R attackers among N clients.

    Needs `N >= 2 R + 3`, infinite otherwise.

    >>> krum_drift(1.0, clients=20, attackers=3).round(6), krum_drift(1.0, clients=8, attackers=3)
    (np.float64(4.148345), np.float64(inf))
    """
    (bound,) = floats(update_bound)
    if clients < 2 * attackers + 3:
        return np.full(bound.shape, np.inf)[()]
    return 2.0 * bound * (1.0 + math.sqrt((clients - attackers - 2) / (clients - 2 * attackers - 1)))
