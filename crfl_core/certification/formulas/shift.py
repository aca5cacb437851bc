"""Shift of a sample's gradient by poison: docs/certificates.md#the-shift-of-one-gradient.

Softmax regression with weights W: a sample's gradient is `g = x~ (P - e_y)^T` with `P = softmax(W^T x~)`, where `x~`
is the input with the constant 1 of the bias, if there is one. All norms of inputs are those of `x~`, all norms of
weights are spectral norms of the weight block without the bias row (centring its columns is allowed). Every function
broadcasts, so attackers may stand along one axis and perturbations along another.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from crfl_core.certification.formulas._arrays import Array, floats

SampleChange = Literal["features", "labels", "features+labels", "replacement"]

SQRT2 = math.sqrt(2.0)


def gradient_shift_rate(reach: ArrayLike) -> Array:
    """Return F(c), the rate at which a moved input moves its gradient.

    The largest `||P - e_k + c S(P) u||` over all probabilities P, labels k and unit vectors u.
    Here `S(P) = diag(P) - P P^T`. With `reach` c = ||x~|| ||W||, moving the input by d moves the gradient by at most
    `F(c) d`. Exact: `sqrt 2` up to `c = 1/sqrt 2`, then `c/2 + 1/sqrt 2 + 1/(4c)`, two expressions that meet there.

    >>> gradient_shift_rate([0.5, 4.242640687119286]).round(12)
    array([1.41421356, 2.88735269])
    """
    (c,) = floats(reach)
    c = np.maximum(c, 1.0 / SQRT2)
    return c / 2.0 + 1.0 / SQRT2 + 0.25 / c


def saturating_shift(delta: ArrayLike, input_bound: ArrayLike, weight_norm: ArrayLike) -> Array:
    """Bound the gradient shift of a moved input.

    The saturating change of P gives `sqrt 2 delta + sqrt 2 B tanh(sqrt 2 ||W|| delta / 4)`, whatever the poisoned
    input. Only the clean input must be bounded, by `input_bound` B. An infinite weight norm gives `sqrt 2 (delta + B)`.

    >>> saturating_shift(0.1, 9.25, 3.4).round(12)
    np.float64(1.706390672264)
    """
    size, bound, norm = floats(delta, input_bound, weight_norm)
    with np.errstate(invalid="ignore", over="ignore"):
        logit_change = np.where(size > 0, norm * size, 0.0)
    return (SQRT2 * size + SQRT2 * bound * np.tanh(SQRT2 * logit_change / 4.0))[()]


def input_bound_under_poison(delta: ArrayLike, input_bound: ArrayLike, domain_bound: ArrayLike = np.inf) -> Array:
    """Return B', a bound on the norm of poisoned inputs.

    It is what delta allows within the domain.

    >>> input_bound_under_poison([0.5, 100.0], 1.0, 28.02)
    array([ 1.5 , 28.02])
    """
    size, bound, domain = floats(delta, input_bound, domain_bound)
    return np.minimum(bound + size, domain)


def local_weight_norm(start_norm: ArrayLike, largest_input: ArrayLike, path: ArrayLike) -> Array:
    """Return rho_loc, a bound on the weight norm during local training.

    Training starts at a broadcast model of norm `start_norm`.
    Each step adds a gradient of norm at most `sqrt 2 max(B, B')`; `path` is the sum of the steps' learning rates,
    eta tau. Weight decay only shrinks the weights.

    >>> local_weight_norm(3.0, 2.0, 0.03).round(12)
    np.float64(3.084852813742)
    """
    start, largest, rates = floats(start_norm, largest_input, path)
    with np.errstate(invalid="ignore"):
        return start + np.where(rates > 0, SQRT2 * largest * rates, 0.0)


def feature_shift(
    delta: ArrayLike,
    *,
    input_bound: ArrayLike,
    start_norm: ArrayLike,
    path: ArrayLike,
    domain_bound: ArrayLike = np.inf,
) -> Array:
    """Return the largest gradient shift of a moved input.

    An input of norm B moves by delta. The result is `G_feat(delta)`. The smallest of four bounds:
    `F(B_seg rho_loc) delta`, the saturating one, `sqrt 2 (delta + B)` and `sqrt 2 (B + B')`. Without a declared
    `domain_bound`, `B' = B + delta`. `start_norm` is the norm of the broadcast weights, infinite if unknown; `path` is
    eta tau. Non-decreasing in delta and 0 at 0; at an infinite delta it is the cap `sqrt 2 (B + domain_bound)`.

    >>> feature_shift([0.0, 0.1, 5.0, np.inf], input_bound=1.0, start_norm=3.0, path=0.03, domain_bound=1.0).round(6)
    array([0.      , 0.231049, 2.828427, 2.828427])
    """
    size, bound = floats(delta, input_bound)
    poisoned = input_bound_under_poison(size, bound, domain_bound)
    segment = np.maximum(bound, poisoned)
    weight_norm = local_weight_norm(start_norm, segment, path)
    with np.errstate(invalid="ignore", over="ignore"):
        smooth = gradient_shift_rate(segment * weight_norm) * size
    shift = np.fmin(smooth, saturating_shift(size, bound, weight_norm))
    shift = np.minimum(shift, SQRT2 * (bound + np.minimum(size, poisoned)))
    return np.where(size > 0, shift, 0.0)[()]


def label_shift(input_bound: ArrayLike) -> Array:
    """Return the gradient shift of a changed label, `sqrt 2 B`.

    It is exact for all weights. `input_bound` B is the norm of the input. It also bounds the removal of a sample, and
    with B' its insertion.

    >>> label_shift(1.0).round(6)
    np.float64(1.414214)
    """
    return SQRT2 * floats(input_bound)[0]


def replacement_shift(input_bound: ArrayLike, domain_bound: ArrayLike) -> Array:
    """Return the gradient shift of a replaced sample.

    It is `sqrt 2 (B + B')`. It cannot be improved without a bound on the weights.

    >>> replacement_shift(1.0, 1.0).round(6)
    np.float64(2.828427)
    """
    return label_shift(input_bound) + label_shift(domain_bound)


def gradient_shift(
    change: SampleChange,
    delta: ArrayLike,
    *,
    input_bound: ArrayLike,
    start_norm: ArrayLike,
    path: ArrayLike,
    domain_bound: ArrayLike = np.inf,
) -> Array:
    """Return G, the largest shift of one sample's gradient.

    It depends on the kind of poison. It is at most `sqrt 2 (B + B')`. "labels" and "replacement" do not depend on
    delta; the latter needs a domain bound to be finite.

    >>> bounds = dict(input_bound=1.0, start_norm=3.0, path=0.03, domain_bound=1.0)
    >>> [float(gradient_shift(kind, 0.1, **bounds).round(4)) for kind in ("features", "labels", "features+labels")]
    [0.231, 1.4142, 1.6453]
    """
    (size,) = floats(delta)
    if change == "labels":
        return label_shift(input_bound) + np.zeros_like(size)
    if change == "replacement":
        return replacement_shift(input_bound, domain_bound) + np.zeros_like(size)
    moved = feature_shift(size, input_bound=input_bound, start_norm=start_norm, path=path, domain_bound=domain_bound)
    if change == "features":
        return moved
    cap = replacement_shift(input_bound, input_bound_under_poison(size, input_bound, domain_bound))
    return np.minimum(label_shift(input_bound) + moved, cap)
