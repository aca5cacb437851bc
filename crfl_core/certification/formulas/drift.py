"""Drift of the aggregate of one attacked round: docs/certificates.md#the-drift-of-a-round.

Everything here needs plain SGD on a convex loss and `eta <= 2 / beta`; with weight decay lambda (included in beta)
`eta <= 2 / (beta + lambda)`. Functions broadcast over clients; `terms` are the contributions of single attackers,
which `worst_totals` adds up. A proximal weight mu pulls local models toward the broadcast one; then `eta <= 2 / (beta
+ lambda + 2 mu)`: docs/certificates.md#a-pull-toward-the-start.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from crfl_core.certification.formulas._arrays import Array, floats


def retention(learning_rate: ArrayLike, steps: ArrayLike, weight_decay: ArrayLike, proximal: ArrayLike = 0.0) -> Array:
    """Return c, the share of the broadcast model that local training leaves.

    `c = (1 - eta lambda)^tau` for weight decay lambda.
    With a proximal weight mu, `c = a^tau + (1 - a^tau) mu / (lambda + mu)`, `a = 1 - eta (lambda + mu)`.

    >>> retention(0.1, 10, [0.0, 0.01]).round(6)
    array([1.      , 0.990045])
    >>> retention(0.1, 10, [0.0, 0.01], proximal=0.5).round(6)
    array([1.      , 0.992009])
    """
    decay, pull = np.broadcast_arrays(*floats(weight_decay, floats(weight_decay)[0] + floats(proximal)[0]))
    log_kept = _log_retention(learning_rate, steps, pull)
    with np.errstate(divide="ignore", invalid="ignore"):
        pulled = 1.0 + np.expm1(log_kept) * (decay / pull)
    return np.where(decay == pull, np.exp(log_kept), pulled)[()]


def effective_steps(learning_rate: ArrayLike, steps: ArrayLike, weight_decay: ArrayLike) -> Array:
    """Return how many undamped steps a constant push amounts to.

    The push comes in every step, and the result is `sum_s (1 - eta lambda)^(tau - 1 - s) = (1 - c) / (eta lambda)`,
    which is tau without weight decay.

    >>> effective_steps(0.1, 10, [0.0, 0.01]).round(6)
    array([10.     ,  9.95512])
    """
    rate, count, decay = floats(learning_rate, steps, weight_decay)
    damping = rate * decay
    lost = -np.expm1(_log_retention(rate, count, decay))
    return np.where(damping > 0, lost / np.where(damping > 0, damping, 1.0), count)[()]


def largest_rate(smoothness: ArrayLike, weight_decay: ArrayLike = 0.0) -> Array:
    """Return the largest rate at which a step contracts by its decay.

    `2 / (beta + 2 lambda)`, for a convex, beta-smooth loss.
    `smoothness` beta is that of the loss without its decay: `B^2 / 2`, with the batch-spectrum rule `L / 2`, with the
    ball rule `ball_smoothness`. Exact: a gap of two models becomes `1 - eta lambda` times as long, or less.

    >>> largest_rate(0.5 * 0.0526, [0.0, 0.003]).round(6)
    array([76.045627, 61.919505])
    """
    beta, decay = floats(smoothness, weight_decay)
    with np.errstate(divide="ignore", over="ignore"):
        return 2.0 / (beta + 2.0 * decay)


def residual_bound(
    gradient_bound: ArrayLike, learning_rate: ArrayLike, steps: ArrayLike, weight_decay: ArrayLike = 0.0
) -> Array:
    """Bound the longest centred residual of local steps.

    Their gradients are at most kappa long, and the bound is `U = kappa (1 - c) / lambda`, or
    `eta tau kappa` without weight decay. kappa is `sqrt 2 B`, `spectrum_gradient_bound` or `ball_gradient_bound`.

    >>> residual_bound(0.324345, 1.0, 4, [0.0, 0.01]).round(6)
    array([1.29738 , 1.278049])
    """
    kappa, rate = floats(gradient_bound, learning_rate)
    return kappa * rate * effective_steps(rate, steps, weight_decay)


def update_bound(
    learning_rate: ArrayLike,
    steps: ArrayLike,
    input_bound: ArrayLike,
    weight_decay: ArrayLike = 0.0,
    start_norm: ArrayLike = 0.0,
    proximal: ArrayLike = 0.0,
) -> Array:
    """Return U, the norm that no clean local update exceeds.

    Unrolled, a clean update is `u = -(1 - c) w + r` with `||r|| <= sqrt 2 B (1 - c) / lambda`, or `eta tau sqrt 2 B`
    without weight decay. The default bounds the centred residual r, which is what a server should cap; with the
    norm of the broadcast model w as `start_norm` it bounds u itself. With a proximal weight mu, `||r|| <= sqrt 2 B
    (1 - a^tau) / (lambda + mu)`, `a = 1 - eta (lambda + mu)`.

    >>> update_bound(0.001, 30, 1.0).round(6)
    np.float64(0.042426)
    >>> update_bound(0.1, 10, 1.0, weight_decay=0.01, start_norm=2.0).round(6)
    np.float64(1.427777)
    """
    rate, bound, norm, decay, weight = floats(learning_rate, input_bound, start_norm, weight_decay, proximal)
    lost = 1.0 - retention(rate, steps, decay, weight)
    return residual_bound(math.sqrt(2.0) * bound, rate, steps, decay + weight) + lost * norm


def worst_poisoned_share(
    poisoned: ArrayLike, batch_sizes: ArrayLike, steps_per_epoch: int, step_retention: float = 1.0
) -> Array:
    """Return the largest `sum_s k_s / n_s` of `poisoned` samples.

    It holds wherever the samples fall. The answer is an array over `poisoned`. `batch_sizes` are the n_s of a client's
    tau steps. Each epoch of `steps_per_epoch` steps shows every sample at most once, so there `sum_s k_s <= q` and
    `k_s <= n_s`. With weight decay, `step_retention` = 1 - eta lambda weighs step s by its power tau - 1 - s. A sample
    counts most in the smallest batches, so these are filled first.

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
        size = sizes[first : first + steps_per_epoch]
        weight = weights[first : first + steps_per_epoch]
        order = np.argsort(-weight / size, kind="stable")
        filled = np.concatenate([[0.0], size[order].cumsum()])
        total += np.interp(counts, filled, np.concatenate([[0.0], weight[order].cumsum()]))
    return total[()]


def attack_strength(weight: ArrayLike, scale: ArrayLike, learning_rate: ArrayLike, share: ArrayLike) -> Array:
    """Return S, the drift per unit shift of one poisoned sample's gradient.

    `S = p gamma eta sum_s k_s / n_s`.
    `share` is the sum: `worst_poisoned_share`, or `effective_steps` times q/n for a fixed number in every batch.

    >>> attack_strength(0.05, 10.0, 0.001, 30 * 0.05)
    np.float64(0.00075)
    """
    p, gamma, rate, fraction = floats(weight, scale, learning_rate, share)
    return (p * gamma * rate * fraction)[()]


def scale_terms(weight: ArrayLike, scale: ArrayLike, clean_update_bound: ArrayLike) -> Array:
    """Return the drift of scaling alone against the honest clean world.

    `(gamma - 1) p U`. U bounds the update u itself, not its residual.
    A data attack costs `S G` against the scaled clean world, `S G + (gamma - 1) p U` against the honest one. Who
    does not scale, or has no weight, costs nothing, even if U is infinite.

    >>> scale_terms(0.05, 10.0, 0.393).round(6)
    np.float64(0.17685)
    """
    p, gamma, bound = floats(weight, scale, clean_update_bound)
    with np.errstate(invalid="ignore"):
        return np.where((gamma > 1.0) & (p > 0), (gamma - 1.0) * p * bound, 0.0)[()]


def byzantine_terms(weight: ArrayLike, submitted_bound: ArrayLike, other_bound: ArrayLike) -> Array:
    """Return the drift of an attacker that submits anything allowed.

    The server lets these submissions through. The drift is `p (C_u + V)`. `submitted_bound` bounds what it submits in
    this run: the server's cap, or the smaller of the cap and the observed norm if the statement is about this run only.
    `other_bound` is V, the longest that the other world may have in its place: what honest training can reach, U, if
    that world is the clean one, the cap if it is any other attack. Both must refer to the same vector, update or
    centred residual.

    >>> byzantine_terms(0.05, 0.0424264, 0.0424264).round(6)
    np.float64(0.004243)
    >>> byzantine_terms(0.05, np.minimum(0.0424264, [0.01, 7.0]), 0.0424264).round(6)
    array([0.002621, 0.004243])
    """
    p, cap, bound = floats(weight, submitted_bound, other_bound)
    with np.errstate(invalid="ignore"):
        return np.where(p > 0, p * (cap + bound), 0.0)[()]


def worst_totals(terms: ArrayLike, *, clip_norm: ArrayLike = np.inf) -> Array:
    """Return the drift of the 0, 1, ..., N worst attackers.

    Attackers are the last axis. The drift is at most 2 rho. Both worlds' aggregates are clipped to the ball of radius
    `clip_norm`, so they are never further apart than its diameter.

    >>> worst_totals([0.25, 0.5, 0.125])
    array([0.   , 0.5  , 0.75 , 0.875])
    """
    ordered = np.flip(np.sort(floats(terms)[0], axis=-1), axis=-1).cumsum(axis=-1)
    totals = np.concatenate([np.zeros((*ordered.shape[:-1], 1)), ordered], axis=-1)
    within: Array = np.minimum(totals, 2.0 * floats(clip_norm)[0][..., None])
    return within


def variable_attackers_drift(terms: ArrayLike, fades: ArrayLike, *, clip_norms: ArrayLike = np.inf) -> Array:
    """Return the drift of the worst attackers, changing between rounds.

    The result is for the 0, 1, ..., N worst attackers. `terms` (rounds, clients) holds what each client costs in each
    attacked round, 0 where it takes no part; `fades` (rounds,) what the rounds that follow leave of a drift. The worst
    clients of every round count, at most 2 rho_t.

    >>> variable_attackers_drift([[0.5, 0.25], [0.125, 0.25]], [0.5, 1.0])
    array([0.  , 0.5 , 0.75])
    """
    each, fade, clips = floats(terms, fades, clip_norms)
    totals: Array = (fade[:, None] * worst_totals(each, clip_norm=clips)).sum(axis=0)
    return totals


def fixed_attackers_drift(terms: ArrayLike, fades: ArrayLike, *, clip_norms: ArrayLike = np.inf) -> Array:
    """Return the drift of the worst attackers, fixed in all rounds.

    The result is for the 0, 1, ..., N worst attackers. Arguments are those of `variable_attackers_drift`. The clients
    with the largest `sum_t terms_t fade_t` count. Attackers that may change are no weaker, so their drift is a bound as
    well; with clip norms neither is always the smaller one.

    >>> fixed_attackers_drift([[0.5, 0.25], [0.125, 0.25]], [0.5, 1.0])
    array([0.   , 0.375, 0.75 ])
    """
    each, fade = floats(terms, fades)
    return np.minimum(worst_totals(fade @ each), variable_attackers_drift(each, fade, clip_norms=clip_norms))


def _log_retention(learning_rate: ArrayLike, steps: ArrayLike, weight_decay: ArrayLike) -> Array:
    rate, count, decay = floats(learning_rate, steps, weight_decay)
    damping = rate * decay
    if not ((damping >= 0.0) & (damping <= 1.0)).all():
        raise ValueError(f"learning rate x weight decay must lie in [0, 1], found {np.max(damping):g}")
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(count > 0, count * np.log1p(-damping), 0.0)


def krum_drift(update_bound: ArrayLike, clients: int, attackers: int) -> Array:
    """Bound the drift of Krum that expects R attackers among N clients.

    `2 U + 2 U sqrt((N - R - 2) / (N - 2 R - 1))`.
    Needs `N >= 2 R + 3`, infinite otherwise.

    >>> krum_drift(1.0, clients=20, attackers=3).round(6), krum_drift(1.0, clients=8, attackers=3)
    (np.float64(4.148345), np.float64(inf))
    """
    (bound,) = floats(update_bound)
    if clients < 2 * attackers + 3:
        return np.full(bound.shape, np.inf)[()]
    return 2.0 * bound * (1.0 + math.sqrt((clients - attackers - 2) / (clients - 2 * attackers - 1)))
