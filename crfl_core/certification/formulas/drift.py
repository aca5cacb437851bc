"""How far an attack moves the aggregate of one round: docs/certificates.md#the-drift-of-a-round.

Everything here needs plain SGD on a convex loss and `eta <= 2 / beta`; with weight decay lambda (included in beta)
`eta <= 2 / (beta + lambda)`. Functions broadcast over clients; `terms` are the contributions of single attackers,
which `worst_total` adds up.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from crfl_core.certification.formulas._arrays import Array, floats


def retention(learning_rate: ArrayLike, steps: ArrayLike, weight_decay: ArrayLike) -> Array:
    """`c = (1 - eta lambda)^tau`: the share of the broadcast model that weight decay leaves after local training.

    >>> retention(0.1, 10, [0.0, 0.01]).round(6)
    array([1.      , 0.990045])
    """
    return np.exp(_log_retention(learning_rate, steps, weight_decay))


def effective_steps(learning_rate: ArrayLike, steps: ArrayLike, weight_decay: ArrayLike) -> Array:
    """`sum_s (1 - eta lambda)^(tau - 1 - s) = (1 - c) / (eta lambda)`, which is tau without weight decay.

    What a constant push in every step amounts to, counted in undamped steps.

    >>> effective_steps(0.1, 10, [0.0, 0.01]).round(6)
    array([10.     ,  9.95512])
    """
    rate, count, decay = floats(learning_rate, steps, weight_decay)
    damping = rate * decay
    lost = -np.expm1(_log_retention(rate, count, decay))
    return np.where(damping > 0, lost / np.where(damping > 0, damping, 1.0), count)[()]


def update_bound(
    learning_rate: ArrayLike,
    steps: ArrayLike,
    input_bound: ArrayLike,
    weight_decay: ArrayLike = 0.0,
    start_norm: ArrayLike = 0.0,
) -> Array:
    """`U`, the norm that no clean local update exceeds.

    Unrolled, a clean update is `u = -(1 - c) w + r` with `||r|| <= sqrt 2 B (1 - c) / lambda`, or `eta tau sqrt 2 B`
    without weight decay. The default bounds the centred residual r, which is what a server should cap; with the
    norm of the broadcast model w as `start_norm` it bounds u itself.

    >>> update_bound(0.001, 30, 1.0).round(6)
    np.float64(0.042426)
    >>> update_bound(0.1, 10, 1.0, weight_decay=0.01, start_norm=2.0).round(6)
    np.float64(1.427777)
    """
    rate, bound, norm = floats(learning_rate, input_bound, start_norm)
    lost = -np.expm1(_log_retention(rate, steps, weight_decay))
    return math.sqrt(2.0) * bound * rate * effective_steps(rate, steps, weight_decay) + lost * norm


def worst_poisoned_share(
    poisoned: ArrayLike, batch_sizes: ArrayLike, steps_per_epoch: int, step_retention: float = 1.0
) -> Array:
    """The largest `sum_s k_s / n_s` that `poisoned` samples can have, wherever they fall; an array over `poisoned`.

    `batch_sizes` are the n_s of a client's tau steps. Each epoch of `steps_per_epoch` steps shows every sample at most
    once, so there `sum_s k_s <= q` and `k_s <= n_s`. With weight decay, `step_retention` = 1 - eta lambda weighs step
    s by its power tau - 1 - s. A sample counts most in the smallest batches, so these are filled first.

    A whole epoch of equal batches gives tau q / n, but a single batch of 60 can hold all 30 poisoned of 600 samples:

    >>> worst_poisoned_share(30, [60] * 10, steps_per_epoch=10), worst_poisoned_share(30, [60], steps_per_epoch=10)
    (np.float64(0.5), np.float64(0.5))
    >>> worst_poisoned_share([2, 3], [4, 4, 2], steps_per_epoch=3)
    array([1.  , 1.25])
    """
    counts, sizes = floats(poisoned, batch_sizes)
    weights = step_retention ** np.arange(len(sizes) - 1, -1, -1.0)
    total = np.zeros(counts.shape)
    for first in range(0, len(sizes), steps_per_epoch):
        size, weight = sizes[first : first + steps_per_epoch], weights[first : first + steps_per_epoch]
        order = np.argsort(-weight / size, kind="stable")
        filled = np.concatenate([[0.0], size[order].cumsum()])
        total += np.interp(counts, filled, np.concatenate([[0.0], weight[order].cumsum()]))
    return total[()]


def attack_strength(weight: ArrayLike, scale: ArrayLike, learning_rate: ArrayLike, share: ArrayLike) -> Array:
    """`S = p gamma eta sum_s k_s / n_s`: what an attacker makes of a unit shift of one sample's gradient.

    `share` is the sum: `worst_poisoned_share`, or `effective_steps` times q/n for a fixed number in every batch.

    >>> attack_strength(0.05, 10.0, 0.001, 30 * 0.05)
    np.float64(0.00075)
    """
    p, gamma, rate, fraction = floats(weight, scale, learning_rate, share)
    return (p * gamma * rate * fraction)[()]


def scaling_terms(weight: ArrayLike, scale: ArrayLike, clean_update_bound: ArrayLike) -> Array:
    """`(gamma - 1) p U`: what scaling alone moves if the clean world is honest. U bounds u itself, not its residual.

    A data attack costs `S G` against the scaled clean world, `S G + (gamma - 1) p U` against the honest one. Who
    does not scale, or has no weight, costs nothing, even if U is infinite.

    >>> scaling_terms(0.05, 10.0, 0.393).round(6)
    np.float64(0.17685)
    """
    p, gamma, bound = floats(weight, scale, clean_update_bound)
    with np.errstate(invalid="ignore"):
        return np.where((gamma > 1.0) & (p > 0), (gamma - 1.0) * p * bound, 0.0)[()]


def byzantine_terms(weight: ArrayLike, submitted_bound: ArrayLike, clean_update_bound: ArrayLike) -> Array:
    """`p (C_u + U)`: an attacker that submits anything the server lets through, against the honest clean world.

    `submitted_bound` is the server's cap, or the observed norm; it must refer to the same vector, update or centred
    residual, as `clean_update_bound`. With the free cap `C_u = U` an attacker costs 2 p U.

    >>> byzantine_terms(0.05, 0.0424264, 0.0424264).round(6)
    np.float64(0.004243)
    """
    p, cap, bound = floats(weight, submitted_bound, clean_update_bound)
    with np.errstate(invalid="ignore"):
        return np.where(p > 0, p * (cap + bound), 0.0)[()]


def worst_total(terms: ArrayLike, attackers: int | None = None, *, clip_norm: float = np.inf) -> Array:
    """The drift of an aggregate: the `attackers` largest terms of the last axis (all if None), at most 2 rho.

    Both worlds' aggregates are clipped to the ball of radius `clip_norm`, so they are never further apart than its
    diameter.

    >>> worst_total([0.1, 0.4, 0.2], attackers=2).round(12), worst_total([3.0, 4.0], clip_norm=2.0)
    (np.float64(0.6), np.float64(4.0))
    """
    (each,) = floats(terms)
    if attackers is not None and attackers < each.shape[-1]:
        first = each.shape[-1] - attackers
        each = np.partition(each, first - 1, axis=-1)[..., first:]
    total: Array = each.sum(axis=-1)
    return np.minimum(total, 2.0 * clip_norm)


def worst_totals(terms: ArrayLike, *, clip_norm: float = np.inf) -> Array:
    """The drift of the 0, 1, ..., N worst of N attackers, each at most 2 rho.

    >>> worst_totals([0.25, 0.5, 0.125])
    array([0.   , 0.5  , 0.75 , 0.875])
    """
    totals: Array = np.append(0.0, np.cumsum(np.sort(floats(terms)[0])[::-1]))
    return np.minimum(totals, 2.0 * clip_norm)


def _log_retention(learning_rate: ArrayLike, steps: ArrayLike, weight_decay: ArrayLike) -> Array:
    rate, count, decay = floats(learning_rate, steps, weight_decay)
    damping = rate * decay
    if not ((damping >= 0.0) & (damping <= 1.0)).all():
        raise ValueError(f"learning rate x weight decay must lie in [0, 1], found {np.max(damping):g}")
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(count > 0, count * np.log1p(-damping), 0.0)
