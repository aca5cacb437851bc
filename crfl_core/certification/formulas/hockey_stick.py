"""Contraction without convexity: docs/certificates.md#contraction-without-convexity.

`E_gamma(P || Q) = sup_A P(A) - gamma Q(A)` for gamma >= 1. A clip to radius rho and noise sigma shrink it, whatever
happened to the model in between, so any attack fades if `rho / sigma` is small. All noise from the attacked round on
must be drawn again in the votes. `diameters` are `2 rho_t / sigma_t` of the rounds after the attacked one: that of the
clip's ball, in units of noise.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfl_core.certification.formulas import _special as special
from crfl_core.certification.formulas._arrays import Array, floats
from crfl_core.certification.formulas.rules import gaussian_threshold

EPS = float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny)
ROUNDED_UP = 1.0 + 16.0 * EPS
MARGIN = 2e-12
"""By how much the two sides of the vote rule must differ. Rounding moves a divergence d by at most 64 u in each of 200
rounds, because theta falls with log(gamma) at a rate of at most 1 and `d |log d| <= 1/e`: less than 1.5e-12."""
NEGLIGIBLE = -80.0
"""Divergences whose logarithm is below this need not shrink any further."""
STRONGEST_ROUNDS = 200
"""Number of rounds that are treated exactly; the others, which contract less, by total variation alone."""
SATURATED = 80.0
"""Gaussians at this distance are disjoint in floating point, as if it were infinite."""
VACUOUS = 20.0
"""From this diameter on a round contracts by less than 1e-22, which no threshold shows."""
LOG_GAMMAS = np.concatenate([[0.0], np.geomspace(1e-4, 40.0, 191)])
"""The grid of the vote rule. Every grid is sound, a finer one only certifies more."""
QUANTILES = np.linspace(-8.5, 8.5, 256)
COARSE_BUDGETS = 64
FINE_BUDGETS = 256


def log_theta(log_gamma: ArrayLike, distance: ArrayLike) -> Array:
    """Return log theta, rounded up a little.

    theta is `E_gamma` of two unit Gaussians at distance r,
    `theta = Phi(r/2 - log(gamma)/r) - gamma Phi(-r/2 - log(gamma)/r)`, also where it underflows. With
    `a = log(gamma)/r - r/2`, `b = a + r` and Mills' ratio M this is `phi(a) (M(a) - M(b))`: gamma has cancelled.

    >>> log_theta([0.0, 1000.0], [np.inf, 2.0]).round(3)
    array([      0.   , -124513.155])
    """
    level, r = np.broadcast_arrays(*floats(log_gamma, distance))
    inside = (level > 0) & (r > 0) & (r < SATURATED)
    width = np.where(inside, r, 1.0)
    a = np.where(inside, level, 1.0) / width - width / 2.0
    log_density = -a * a / 2.0 - math.log(2.0 * math.pi) / 2.0
    beyond = _mills(a + width)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = _mills(np.maximum(a, 0.0))
        rare = log_density + np.log(ratio * ROUNDED_UP - beyond)
        likely = np.log(special.ndtr(-a) * ROUNDED_UP - np.exp(log_density) * beyond)  # M overflows for a << 0
        overlap = r / math.sqrt(8.0)
        total_variation = np.where(overlap < 0.5, np.log(special.erf(overlap)), np.log1p(-special.erfc(overlap)))
    edge = np.where(level > 0, np.where(r > 0, 0.0, -np.inf), total_variation)
    value = np.where(a > 0, rare, likely) + 4.0 * EPS * np.abs(a) * (np.abs(a) + width)
    return np.minimum(np.where(inside, value, edge), 0.0)[()]


def log_divergence(log_gamma: ArrayLike, budget: ArrayLike, diameters: ArrayLike) -> Array:
    """Bound log `E_gamma` between the two worlds' final models, in both directions.

    The attacked round costs a `budget` mu (its drift over its noise, or any trade-off budget so far), which gives
    `d = theta_gamma(mu)`; every later round turns d into `d theta_{1 + (gamma - 1)/d}(2 rho_t / sigma_t)`. Broadcasts
    over `log_gamma` and `budget`.

    >>> np.exp(log_divergence(0.3, 1.2, np.full(5, 2.0))).round(12)
    np.float64(0.002243316298)
    """
    level, mu = floats(log_gamma, budget)
    later = floats(diameters)[0].ravel()
    strong = np.zeros(later.shape, np.bool_)
    strong[np.argsort(later, kind="stable")[:STRONGEST_ROUNDS]] = True
    strong &= later < 18.0  # beyond, a factor differs from 1 by less than its rounding
    divergence = np.array(log_theta(level, mu))
    with np.errstate(divide="ignore"):
        excess = np.log(np.expm1(level))
        # d theta_{1 + (gamma - 1)/d} / d grows with d, so shrinking by total variation last is an upper bound.
        weak = log_theta(0.0, later[~strong]).sum()
    for diameter in later[strong]:
        if not (divergence > NEGLIGIBLE).any():
            break
        larger = np.logaddexp(0.0, excess - np.maximum(divergence, 10.0 * NEGLIGIBLE))
        divergence += log_theta(larger, diameter)
    total: Array = divergence + weak
    return total[()]


def hockey_stick_threshold(
    p_a: ArrayLike, p_b: ArrayLike, diameters: ArrayLike, largest_budget: float = np.inf
) -> Array:
    """Return the largest certified budget mu of the attacked round.

    It answers for many votes at once. The budget is at least `gaussian_threshold`, which ignores contraction. It is
    infinite where `largest_budget` (the diameter of the attacked round's own clip) is certified, that is any attack,
    and 0 where `p_a <= p_b`. Every finite value above the Gaussian one comes from a table of budgets and was certified
    itself.

    >>> hockey_stick_threshold([0.7, 0.7, 0.7], 0.1, np.full(5, 6.0)).round(2)
    array([0.92, 0.92, 0.92])
    >>> hockey_stick_threshold(0.7, 0.1, np.full(20, 2.0))
    np.float64(inf)
    """
    first, second = np.broadcast_arrays(*floats(p_a, p_b))
    shape = first.shape
    first = first.ravel()
    second = second.ravel()
    best = np.array(gaussian_threshold(first, second))
    largest_budget *= ROUNDED_UP
    best[best > largest_budget] = np.inf
    unsure = np.flatnonzero((best > 0) & np.isfinite(best))
    if len(unsure) == 0 or (floats(diameters)[0] > VACUOUS).all():
        return best.reshape(shape)[()]
    reach = min(max(largest_budget, TINY), SATURATED)
    budgets = np.geomspace(min(float(best[unsure].min()), reach), reach, COARSE_BUDGETS)
    place = _last_certified(first[unsure], second[unsure], diameters, budgets)
    budgets = _refined(budgets, place)
    place = _last_certified(first[unsure], second[unsure], diameters, budgets)
    found = np.where(place >= 0, budgets[np.maximum(place, 0)], 0.0)
    best[unsure] = np.where(place == len(budgets) - 1, np.inf, np.maximum(best[unsure], found))
    return best.reshape(shape)[()]


def _last_certified(p_a: Array, p_b: Array, diameters: ArrayLike, budgets: Array) -> NDArray[np.int64]:
    return _VoteTable(log_divergence(LOG_GAMMAS, budgets[:, None], diameters)).last_certified(p_a, p_b)


def _refined(budgets: Array, places: NDArray[np.int64]) -> Array:
    """Place more budgets between the same ends.

    Half of them are near the votes, half are spread evenly.
    """
    cells = len(budgets) - 1
    votes = np.bincount(np.clip(places, 0, cells - 1), minlength=cells) / len(places)
    share = np.append(0.0, np.cumsum(0.5 * votes + 0.5 / cells))
    finer = np.exp(np.interp(np.linspace(0.0, share[-1], FINE_BUDGETS), share, np.log(budgets)))
    return np.append(finer[:-1], budgets[-1])


class _VoteTable:
    """For each budget (rows of `log_divergences`, ascending) and each quantile, the gamma that serves the rule best.

    Any gamma gives a valid bound, linear in p, so the choice made for the nearest quantile is applied to p itself.
    """

    def __init__(self, log_divergences: Array) -> None:
        gamma = np.exp(LOG_GAMMAS)
        d = np.exp(log_divergences)
        p = special.ndtr(QUANTILES)[:, None]
        not_p = special.ndtr(-QUANTILES)[:, None]
        rows = len(d), len(QUANTILES)
        self.kept, self.kept_slope, self.gained, self.gained_slope = np.empty((4, *rows))
        direct = np.concatenate([1.0 / gamma, -gamma])
        inverse = np.concatenate([gamma, 1.0 / gamma])
        from_p = direct > 0
        for row, divergence in enumerate(d):
            # A negative slope belongs to 1 - p, which keeps its digits where p is nearly 1.
            constant = np.concatenate([-divergence / gamma, 1.0 - divergence])
            choice = (constant + direct * np.where(from_p, p, not_p)).argmax(axis=1)
            self.kept[row] = constant[choice]
            self.kept_slope[row] = direct[choice]
            constant = np.concatenate([divergence, 1.0 - (1.0 - divergence) / gamma])
            choice = (constant + inverse * p).argmin(axis=1)
            self.gained[row] = constant[choice]
            self.gained_slope[row] = inverse[choice]

    def last_certified(self, p_a: Array, p_b: Array) -> NDArray[np.int64]:
        """Find a certified row with an uncertified successor, by bisection.

        It is -1 if there is none.
        """
        low = np.full(len(p_a), -1)
        high = np.full(len(p_a), len(self.kept))
        column_a = _nearest_quantile(p_a)
        column_b = _nearest_quantile(p_b)
        while (high - low > 1).any():
            middle = (low + high) // 2
            row = np.clip(middle, 0, len(self.kept) - 1)
            slope = self.kept_slope[row, column_a]
            kept = self.kept[row, column_a] + slope * np.where(slope > 0, p_a, 1.0 - p_a)
            gained = self.gained[row, column_b] + self.gained_slope[row, column_b] * p_b
            certified = kept > gained + MARGIN
            undecided = high - low > 1
            low = np.where(undecided & certified, middle, low)
            high = np.where(undecided & ~certified, middle, high)
        return low


def _nearest_quantile(p: Array) -> NDArray[np.int64]:
    step = QUANTILES[1] - QUANTILES[0]
    place: Array = (np.clip(special.ndtri(p), QUANTILES[0], QUANTILES[-1]) - QUANTILES[0]) / step
    return np.rint(place).astype(np.int64)


def _mills(x: Array) -> Array:
    """Return Mills' ratio `(1 - Phi(x)) / phi(x)`.

    It is for x above about -35.
    """
    return math.sqrt(math.pi / 2.0) * special.erfcx(x / math.sqrt(2.0))
