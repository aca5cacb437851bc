"""The ball rule, for runs without training noise: docs/certificates/every-round.md#the-ball-rule.

With weight decay lambda on all parameters, models stay in the ball of radius `kappa / lambda` if no gradient in that
ball is longer than kappa. There a batch of spectrum at most L, inputs at most B long and a gradient of at most F at the
model 0 has gradients of at most `F + (L / B) I(B kappa / lambda)`. So the smallest kappa that is not below this may
take the place of `sqrt(2 L)`: a smaller cap, and half the drift under strong decay. Client level only.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfl_core.certification.formulas._arrays import Array, floats
from crfl_core.certification.formulas.rounding import UNIT_ROUNDOFF
from crfl_core.certification.formulas.spectrum import spectrum_gradient_bound

HALVINGS = 120
ALLOWANCE = 128.0 * UNIT_ROUNDOFF
"""Relative error of both sides of the condition, more than all of their roundings together."""


def ball_gradient_bound(
    start_limit: ArrayLike, limit: ArrayLike, weight_decay: ArrayLike, input_bound: ArrayLike, classes: int
) -> Array:
    """Return kappa, the longest gradient of a scaled batch inside the ball.

    The smallest solution of `F + (L / B) I(B kappa / lambda) <= kappa`, or `sqrt(2 L)` if none is smaller.
    `start_limit` F bounds the gradients of scaled batches at the model 0 (see `batch_factor`), `limit` L their
    spectrum, `input_bound` B their inputs with the bias. `F = sqrt(L (1 - 1/C))` holds for all batches by itself.
    Rounded up, to a value that fulfils the condition.

    >>> ball_gradient_bound(0.14, 0.0526, [0.1, 0.03], 1.0, classes=10).round(6)
    array([0.15776 , 0.324345])
    """
    start, top, decay, bound = np.broadcast_arrays(*floats(start_limit, limit, weight_decay, input_bound))
    most = spectrum_gradient_bound(top)
    # Beyond the kappa where I grows as fast as kappa does, the condition fails by more and more.
    high = np.minimum(_turning_point(top, decay, bound, classes), most)
    solvable = _holds(high, start, top, decay, bound, classes)
    low = np.minimum(start, high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        holds = _holds(middle, start, top, decay, bound, classes)
        low = np.where(holds, low, middle)
        high = np.where(holds, middle, high)
    return np.where(solvable, high, most)[()]


def ball_room(
    gradient_bound: ArrayLike,
    start_limit: ArrayLike,
    limit: ArrayLike,
    weight_decay: ArrayLike,
    input_bound: ArrayLike,
    classes: int,
) -> Array:
    """Return how much gradients inside the ball stay below kappa, at least.

    `kappa - F - (L / B) I(B kappa / lambda)`.
    Below 0 the rule does not hold for this kappa. Above 0 a step of rate eta ends inside the ball even if rounding adds
    eta times the room. The smallest kappa leaves none; one that is a little larger usually does. Rounded down.

    >>> ball_room([0.15776, 0.1577602, 0.17], 0.14, 0.0526, 0.1, 1.0, classes=10) > 0
    array([False,  True,  True])
    """
    kappa, start, top, decay, bound = floats(gradient_bound, start_limit, limit, weight_decay, input_bound)
    return kappa - _longest(kappa, start, top, decay, bound, classes)


def ball_smoothness(
    limit: ArrayLike, gradient_bound: ArrayLike, weight_decay: ArrayLike, input_bound: ArrayLike, classes: int
) -> Array:
    """Return the smoothness of losses inside the ball.

    It is at most `L / 2`, and equal to `L h(B kappa / lambda)`, the `smoothness` of `largest_rate`.

    >>> ball_smoothness(0.0526, 0.1578, 0.5, 1.0, classes=10).round(6)
    np.float64(0.007058)
    """
    top, kappa, decay, bound = floats(limit, gradient_bound, weight_decay, input_bound)
    return top * _slope(bound * kappa / decay, classes) * (1.0 + ALLOWANCE)


def _turning_point(limit: Array, decay: Array, bound: Array, classes: int) -> Array:
    """Return kappa where `(L / lambda) h = 1`.

    It is infinite if h stays smaller, and 0 if it starts there.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = limit / decay - 1.0
        reach = np.log((classes - 1.0) / ratio) / _growth(classes)
        return np.where(ratio <= 1.0, np.inf, np.maximum(reach * decay / bound, 0.0))


def _holds(kappa: Array, start: Array, limit: Array, decay: Array, bound: Array, classes: int) -> NDArray[np.bool_]:
    return np.less_equal(_longest(kappa, start, limit, decay, bound, classes), kappa)


def _longest(kappa: Array, start: Array, limit: Array, decay: Array, bound: Array, classes: int) -> Array:
    """Return `F + (L / B) I(B kappa / lambda)`, rounded up."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return (start + limit / bound * _integral(bound * kappa / decay, classes)) * (1.0 + ALLOWANCE)


def _integral(reach: Array, classes: int) -> Array:
    """Return `I(a)`, the integral of h from 0 to a."""
    growth = _growth(classes)
    half = math.log(classes - 1.0) / growth
    below = np.log1p(np.expm1(growth * np.minimum(reach, half)) / classes) / growth
    return below + np.maximum(reach - half, 0.0) / 2.0


def _slope(reach: Array, classes: int) -> Array:
    """Return a bound on the norm of `diag P - P P^T`.

    The logits have norm a, and the bound is `h(a) = min(1/2, 1 / (1 + (C - 1) exp(-s a)))`.
    """
    return np.minimum(0.5, 1.0 / (1.0 + (classes - 1.0) * np.exp(-_growth(classes) * reach)))


def _growth(classes: int) -> float:
    """Return `s = sqrt(C / (C - 1))`.

    It says how fast one logit can leave the mean of the others.
    """
    return math.sqrt(classes / (classes - 1.0))
