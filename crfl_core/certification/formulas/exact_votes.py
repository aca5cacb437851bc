"""The votes of a linear model under Gaussian noise, computed instead of sampled: docs/certificates.md#confidence.

Noise of std sigma on all parameters makes the logits independent normals of std `s = sigma ||x~||`. With the winner's
logit at 0, the others at `-g_j` and everything in units of s, three integrals over the value v of a noisy logit say it
all:

    p_A     = int phi(v) prod_{j != A} Phi(v + g_j) dv
    1 - p_A = int phi(v) (1 - prod_{j != A} Phi(v + g_j)) dv
    p_B     = int phi(v + g_B) Phi(v) prod_{j != A, B} Phi(v + g_j) dv

These describe one training run, that is the pathwise statement only.

**Error.** A trapezoidal sum of step h has, for each of the three and for all gaps, a relative error of at most
`2 q / (1 - q)` with `q = exp(-2 pi^2 / (C h^2))`: for complex v = x + iy both Phi and 1 - Phi grow by at most
`exp(y^2 / 2)`, and `1 - prod Phi` is a sum of products of them with positive terms. Integrands are log-concave (the
second: sums of such), with curvature between 1 and C and modes between `-g_B / 2 - 0.51` and the solution of
`v = (C - 1) phi(v) / Phi(v)`, so cutting them off at a distance L costs at most `4 C Q(L - h)` of the result.
Leaving out classes of which the chance to beat A is below `rel / 4 C^2` of B's costs at most rel / 4.

**Speed.** All samples share the grid in v, so `Q(v + g_j)` is read from a table of the same step that is refined
several times, as a Taylor polynomial in the offset, which is the same for a whole row. Its relative error is at most
`((x + 2) s / 2)^5 / 100` for the table's step s and x > 0; for x < 0 an absolute error is enough, and that is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from crfl_core.certification.formulas import _special as special
from crfl_core.certification.formulas._arrays import Array, floats
from crfl_core.certification.formulas.rounding import UNIT_ROUNDOFF, gamma

LARGE_GAP = 40.0
"""Beyond it, in units of s, probabilities underflow and the union bound is as good as exact."""
ELEMENTS_AT_ONCE = 2**15
"""Samples times grid points in memory at a time: what fits into a core's cache."""
LOGARITHM = 16.0 * UNIT_ROUNDOFF
"""Relative rounding error of logarithms of normal tails, and of exponents on the way to them."""
SQRT_2PI = math.sqrt(2.0 * math.pi)


class ExactVotes(NamedTuple):
    """The winner of a vote and logarithms of probabilities, each rounded to the safe side by the relative error.

    `log_p_a` bounds the winner's from below, `log_rest` that of all other classes together and `log_p_b` that of
    the second from above. The last three are the arguments of `gaussian_threshold_of_logs`.
    """

    first: NDArray[np.int64]
    log_p_a: Array
    log_rest: Array
    log_p_b: Array


def exact_votes(logits: ArrayLike, noise_stds: ArrayLike, relative_error: float = 1e-12) -> ExactVotes:
    """Compute the class probabilities of a noisy linear model.

    The result is for all m samples. `logits` (m, C) are those without noise, `noise_stds` (m,) the std `sigma ||x~||`
    of the noise on each. Correct to `relative_error` for gaps up to 40 noise stds, valid bounds beyond.

    >>> votes = exact_votes([[1.0, 0.2, -0.5]], [0.5])
    >>> np.exp([votes.log_p_a[0], votes.log_rest[0], votes.log_p_b[0]]).round(9)
    array([0.8634017 , 0.1365983 , 0.12623682])
    """
    values, stds = floats(logits, noise_stds)
    if not np.isfinite(values).all() or values.shape[1] < 2:
        raise ValueError(f"exact votes need finite logits of two or more classes, found an array of {values.shape}")
    if not 1e-13 <= relative_error <= 1e-3:
        raise ValueError(f"relative_error must lie between 1e-13 and 1e-3, found {relative_error:g}")
    below = values.max(axis=1, keepdims=True) - values
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        gaps = np.sort(np.where(below > 0, below / stds[:, None], 0.0), axis=1)[:, 1:]
    log_p_a, log_rest, log_p_b = np.empty((3, len(values)))
    small = gaps[:, 0] <= LARGE_GAP
    log_p_a[~small], log_rest[~small], log_p_b[~small] = _union_bounds(gaps[~small])
    if small.any():
        log_p_a[small], log_rest[small], log_p_b[small] = _Quadrature(gaps[small], relative_error).integrate()
    return ExactVotes(values.argmax(axis=1), log_p_a, log_rest, log_p_b)


def _union_bounds(gaps: Array) -> tuple[Array, Array, Array]:
    """Bound the probabilities by a union over the other classes.

    Class j beats A with probability `Phi(-g_j / sqrt 2)`, and A loses only if some class beats it.
    """
    beaten = special.log_ndtr(-gaps / math.sqrt(2.0)) * (1.0 - LOGARITHM)
    log_rest = special.logsumexp(beaten, axis=1) * (1.0 - LOGARITHM)
    return np.log1p(-np.exp(log_rest)) * (1.0 + LOGARITHM), log_rest, beaten[:, 0]


class _Quadrature:
    """The three integrals for gaps (m, C - 1), sorted and at most `LARGE_GAP` in the first column."""

    def __init__(self, gaps: Array, relative_error: float) -> None:
        classes = gaps.shape[1] + 1
        self.gaps = gaps
        self.relative_error = relative_error
        self.step = math.pi * math.sqrt(2.0 / (classes * math.log(10.0 / relative_error)))
        self.reach = self.step - float(special.ndtri(relative_error / (16.0 * classes)))
        self.last = math.ceil((_highest_mode(classes) + self.reach) / self.step)
        # Q(a) / Q(b) <= exp((b^2 - a^2) / 2) for a >= b >= 0 says which classes cannot matter.
        negligible = 4.0 * math.log(4.0 * classes**2 / relative_error)
        self.active = (np.square(gaps) - np.square(gaps[:, :1]) < negligible).sum(axis=1)
        # Samples of similar gaps share a grid; inside such a bin, those with more active classes come first.
        self.bins = np.ceil(gaps[:, 0] / 2.0)
        widest = 2.0 * float(self.bins.max())
        farthest = math.sqrt(widest**2 + negligible)
        self.table = _TailTable(
            step=self.step,
            first=self._first(widest),
            last=self.last + math.ceil(farthest / self.step) + 1,
            accurate_to=farthest - widest / 2.0 + self.reach,
            relative_error=relative_error,
        )

    def integrate(self) -> tuple[Array, Array, Array]:
        """Return log p_A, log(1 - p_A) and log p_B."""
        p_a, not_a, p_b = np.empty((3, len(self.gaps)))
        order = np.lexsort((-self.active, self.bins))
        for rows in np.split(order, np.flatnonzero(np.diff(self.bins[order])) + 1):
            first = self._first(2.0 * float(self.bins[rows[0]]))
            at_once = max(1, ELEMENTS_AT_ONCE // (self.last - first + 1))
            for start in range(0, len(rows), at_once):
                chunk = rows[start : start + at_once]
                p_a[chunk], not_a[chunk], p_b[chunk] = self._sums(chunk, first)
        points = self.last - self._first(LARGE_GAP)
        classes = self.gaps.shape[1] + 1
        error = self.relative_error + float(gamma(points + 8 * classes + 64))  # sums over the grid, a few per class
        not_a, p_b = (np.minimum(p * (1.0 + error - LOGARITHM * np.log(p)), 1.0) for p in (not_a, p_b))
        log_p_a = np.where(not_a < 0.5, np.log1p(-np.minimum(not_a, 0.5)), np.log(p_a * (1.0 - error)))
        return log_p_a * (1.0 + LOGARITHM), np.log(not_a), np.log(p_b)

    def _first(self, gap: float) -> int:
        return -math.ceil((gap / 2.0 + 0.51 + self.reach) / self.step)

    def _sums(self, rows: NDArray[np.int64], first: int) -> tuple[Array, Array, Array]:
        gaps = self.gaps[rows]
        active = self.active[rows]
        v = self.step * np.arange(first, self.last + 1)
        density = self.step / SQRT_2PI * np.exp(-v * v / 2.0)
        tail = self.table.reader(first, len(v))
        # No class so far is above v, or some class is: both by sums of positive terms, so that neither loses digits.
        none_above = np.ones((len(rows), len(v)))
        some_above = np.zeros((len(rows), len(v)))
        for rank in range(int(active[0]) - 1, 0, -1):
            count = int(np.searchsorted(-active, -rank))  # the first rows, which have this class active
            above = tail(gaps[:count, rank])
            above *= none_above[:count]
            some_above[:count] += above
            none_above[:count] -= above
        second = np.exp(-np.square(v + gaps[:, :1]) / 2.0)
        second *= none_above
        p_b = second @ (self.step / SQRT_2PI * special.ndtr(v))
        above = tail(gaps[:, 0])
        above *= none_above
        return (none_above - above) @ density, (some_above + above) @ density, p_b


class _TailTable:
    """`Q(x)` on rows `x = v + g`, where v runs over multiples of `step` and g is one gap per row."""

    DEGREE = 4

    def __init__(self, step: float, first: int, last: int, accurate_to: float, relative_error: float) -> None:
        half = (12.0 * relative_error) ** 0.2 / (accurate_to + 2.0)
        self.refinement = math.ceil(step / (2.0 * half))
        self.spacing = step / self.refinement
        self.first = first
        x = step * np.arange(first, last + 1) + self.spacing * np.arange(self.refinement)[:, None]
        # Derivatives of Q are Hermite polynomials times the density; each is scaled to multiply a power of the offset.
        hermite = np.ones_like(x)
        before = np.zeros_like(x)
        scaled = -np.exp(-x * x / 2.0) / SQRT_2PI * self.spacing
        self.coefficients = [special.ndtr(-x), scaled.copy()]
        for degree in range(1, self.DEGREE):
            hermite, before = x * hermite - (degree - 1) * before, hermite
            scaled *= -self.spacing / (degree + 1)
            self.coefficients.append(hermite * scaled)

    def reader(self, first: int, length: int) -> Callable[[Array], Array]:
        """Return a function that reads `Q(v + g)` for gaps (n,).

        It reads `length` grid points from `first`.
        """
        windows = [sliding_window_view(values, length, axis=1) for values in self.coefficients]

        def read(gaps: Array) -> Array:
            exact = gaps / self.spacing
            nearest = np.rint(exact)
            offset = (exact - nearest)[:, None]
            whole, fine = np.divmod(nearest.astype(np.int64), self.refinement)
            whole += first - self.first
            value: Array = windows[-1][fine, whole]
            for window in windows[-2::-1]:
                value *= offset
                value += window[fine, whole]
            return value

        return read


def _highest_mode(classes: int) -> float:
    """Bound the mode of every integrand.

    It is the solution of `v = (C - 1) phi(v) / Phi(v)`, rounded up.
    """
    low = 0.0
    high = math.sqrt(2.0 * math.log(classes)) + 1.0
    while high - low > 1e-3:
        middle = (low + high) / 2.0
        rising = (classes - 1) * math.exp(-middle * middle / 2.0) / SQRT_2PI > middle * float(special.ndtr(middle))
        low, high = (middle, high) if rising else (low, middle)
    return high
