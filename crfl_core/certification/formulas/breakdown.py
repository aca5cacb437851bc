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

from crfl_core.certification.formulas._arrays import Array, floats


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
