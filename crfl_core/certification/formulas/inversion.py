"""From a certified drift to what a certificate reports: docs/certificates.md#from-a-drift-to-a-radius.

`drift` holds, for each test sample, the largest drift D that is certified (see `largest_attack`): an attack that drifts
by at most D does not change the prediction. NaN, for a prediction that is not certified at all, stays NaN. Everything
is monotone in D and all samples face the same attackers, so one table or one search answers for all of them. The same
functions invert a budget mu instead of a drift, if they are given what attacks cost in mu.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from crfl_core.certification.formulas._arrays import Array, floats

POWERS = np.exp2(np.arange(-200.0, 201.0))
"""Radii are bracketed between two of these before they are refined."""
ITERATIONS = 240
"""More than enough for halving a bracket every fifth time; most searches take ten."""
TOLERANCE = 1e-15
"""Relative width of a bracket at which the search for a radius ends."""
STALLED = 4
"""Slow steps of false position after which the search halves brackets."""
RADII_AT_ONCE = 2048
"""Radii that are searched for at a time, which bounds the memory for many attackers."""


def feature_radius(drift: ArrayLike, total_drift: Callable[[Array], Array]) -> Array:
    """Return the largest perturbation delta with `total_drift(delta) <= D`.

    `total_drift` maps perturbations (k,) to the drift of all attackers (k,), non-decreasing, also at 0 and infinity.
    Infinite if even an unlimited perturbation fits; NaN if what does not depend on delta, flipped labels or scaled
    updates, exceeds D alone, and 0 if it just fits. Rounded down: the drift at the radius is at most D.

    >>> feature_radius([0.009, 0.0, 3.0, np.nan], lambda delta: np.minimum(0.003 * delta, 1.0)).round(9)
    array([ 3.,  0., inf, nan])
    >>> feature_radius([0.4, 0.5, 0.9], lambda delta: 0.5 + 0.1 * delta).round(9)
    array([nan,  0.,  4.])
    """
    (limits,) = floats(drift)
    with np.errstate(invalid="ignore"):  # of an attacker without weight, infinity times 0 is NaN, and does not matter
        at_zero, at_most = total_drift(np.array([0.0, np.inf]))
        radii = np.where(limits >= at_most, np.inf, np.where(limits >= at_zero, 0.0, np.nan))
    searched = (radii == 0.0) & (limits > at_zero)
    distinct, place = np.unique(limits[searched], return_inverse=True)
    if len(distinct):
        table = np.maximum.accumulate(total_drift(POWERS))
        chunks = np.split(distinct, range(RADII_AT_ONCE, len(distinct), RADII_AT_ONCE))
        radii[searched] = np.concatenate([_largest_below(chunk, total_drift, table) for chunk in chunks])[place]
    return radii[()]


def sample_ratio(drift: ArrayLike, total_drift: Callable[[Array], Array]) -> Array:
    """Return the largest poisoned share with `total_drift(share) <= D`.

    The share q/n is at most 1. It is the same in every batch, or that of whole epochs of equal batches; for other
    schedules see `sample_count`. NaN if attackers exceed D without any poison. Rounded down.

    >>> sample_ratio([0.01, 0.1, 0.001], lambda share: 0.005 + 0.05 * share).round(9)
    array([0.1, 1. , nan])
    """
    return np.minimum(feature_radius(drift, lambda share: total_drift(np.minimum(share, 1.0))), 1.0)


def sample_count(drift: ArrayLike, costs: ArrayLike) -> Array:
    """Return the largest poisoned count per attacker with `costs[q] <= D`.

    The count is q. `costs` is the drift for q = 0, 1, ..., from `worst_poisoned_share` over the actual schedule. NaN if
    not even `costs[0]` fits; the end of the table if all of it does.

    >>> sample_count([0.0, 0.25, 9.0, -1.0], [0.0, 0.1, 0.2, 0.3])
    array([ 0.,  2.,  3., nan])
    """
    return _largest_count(drift, costs)


def client_count(drift: ArrayLike, costs: ArrayLike) -> Array:
    """Return the largest number R of attackers with `costs[R] <= D`.

    `costs` is the drift of the 0, 1, ... worst clients.
    `worst_totals` makes such a table from what each client can do.

    >>> client_count([0.1, 0.5, 0.65, 5.0], [0.0, 0.4, 0.6, 0.7])
    array([0., 1., 2., 3.])
    """
    return _largest_count(drift, costs)


def _largest_count(drift: ArrayLike, costs: ArrayLike) -> Array:
    limits, table = floats(drift, costs)
    count = np.searchsorted(np.maximum.accumulate(table), limits, side="right") - 1.0
    with np.errstate(invalid="ignore"):
        return np.where(limits >= table[0], count, np.nan)[()]


def _largest_below(limits: Array, total_drift: Callable[[Array], Array], table: Array) -> Array:
    """Return lower ends of brackets around `total_drift(delta) = limit`, by false position.

    The Illinois variant.
    """
    place = np.searchsorted(table, limits, side="right") - 1
    # Where the table does not reach, 0 and its end are lower ends, too.
    found = np.where(place < 0, 0.0, POWERS[np.maximum(place, 0)])
    rows = np.flatnonzero((place >= 0) & (place < len(POWERS) - 1))
    low = POWERS[place[rows]]
    high = POWERS[place[rows] + 1]
    below = table[place[rows]] - limits[rows]
    above = table[place[rows] + 1] - limits[rows]
    moved_low, stalled = np.zeros((2, len(rows)), np.int64)
    for _ in range(ITERATIONS):
        if len(rows) == 0:
            break
        # A step of at least the tolerance makes the far end jump to the root as soon as the near one is there.
        tolerance = TOLERANCE * high
        guess = np.clip(low - below * (high - low) / (above - below), low + tolerance, high - tolerance)
        guess = np.where(stalled < STALLED, guess, (low + high) / 2.0)  # a plateau just above the limit misleads
        value = total_drift(guess) - limits[rows]
        side = np.where(value <= 0, 1, -1)
        # An end that stays a second time counts half, or it would stay for ever.
        half = np.where(side == moved_low, 0.5, 1.0)
        below = np.where(side > 0, value, below * half)
        above = np.where(side > 0, above * half, value)
        width = high - low
        low = np.where(side > 0, guess, low)
        high = np.where(side > 0, high, guess)
        moved_low = side
        stalled = np.where((high - low > width / 2.0) & (stalled < STALLED), stalled + 1, 0)
        found[rows] = low
        going = high - low > 2.0 * tolerance
        rows = rows[going]
        low = low[going]
        high = high[going]
        moved_low = moved_low[going]
        below = below[going]
        above = above[going]
        stalled = stalled[going]
    return found
