"""One attacked round, unknown which: docs/certificates/every-round.md#equal-influence.

Under weight decay a round's influence on the final model is `a_t = (1 - c_t) / lambda prod_{s > t} c_s`: attackers of
weight q with a centred cap move it by at most `2 q kappa a_t`. At a constant rate the last rounds have the most. Rates
that decrease like 1/t give all rounds the same, which is the least that the strongest can have.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from crfl_core.certification.formulas._arrays import Array, floats
from crfl_core.certification.formulas.drift import worst_totals

ROUNDED = 1e-9
"""A rate above the largest by no more than this was rounded, or t0 was; one further above is too large."""


def equal_influence_start(smoothness: ArrayLike, weight_decay: ArrayLike, steps: ArrayLike) -> float:
    """Return the smallest t0 with which all rates keep the step rule.

    `t0 = c / (1 - c)`, `c = (beta / (beta + 2 lambda))^tau`.
    Clients may differ; then it is the largest of theirs. `smoothness` beta and the rule are those of `largest_rate`.

    >>> round(equal_influence_start(0.5 * 0.0526, 0.003, 1), 9), round(equal_influence_start(0.5, 0.01, [10, 20]), 6)
    (4.383333333, 2.082274)
    """
    beta, decay, count = floats(smoothness, weight_decay, steps)
    if not (decay > 0.0).all():
        raise ValueError("equal influence needs weight decay: without it no round is ever forgotten")
    # c = exp(-x) with x = tau log(1 + 2 lambda / beta), and c / (1 - c) = 1 / (exp(x) - 1)
    with np.errstate(divide="ignore", over="ignore"):
        found = 1.0 / np.expm1(count * np.log1p(2.0 * decay / beta))
    return float(np.max(found))


def equal_influence_rates(
    rounds: int, steps: ArrayLike, weight_decay: ArrayLike, start: float, largest: ArrayLike = np.inf
) -> Array:
    """Return rates for equal influence of all rounds.

    The influence is that on the final model, and the rates are `eta_t = (1 - c_t^(1/tau)) / lambda` with
    `c_t = (t + t0 - 1) / (t + t0)`. (rounds,), or (rounds, clients) if `steps` or decays are one for each client: a
    client with more steps takes smaller ones, so that all of a round keep the same share c_t. `start` is t0, from
    `equal_influence_start`, or larger for smaller rates. No rate is above the `largest_rate`, if `largest` gives it,
    not even by rounding.

    >>> equal_influence_rates(3, 1, 0.01, start=4.0).round(6)
    array([20.      , 16.666667, 14.285714])
    """
    count, decay, most = floats(steps, weight_decay, largest)
    if not (decay > 0.0).all() or not start >= 0.0 or rounds < 1:
        raise ValueError(f"equal influence needs weight decay, a round and t0 >= 0, found T = {rounds}, t0 = {start}")
    after = (np.arange(rounds) + float(start)).reshape(rounds, *(1,) * max(count.ndim, decay.ndim))
    with np.errstate(divide="ignore"):
        rates: Array = -np.expm1(-np.log1p(1.0 / after) / count) / decay
    if (rates > most * (1.0 + ROUNDED)).any():
        raise ValueError(f"t0 = {start:g} is too small for the step rule, see equal_influence_start")
    return np.minimum(rates, most)


def equal_influence_drift(
    weight: ArrayLike, gradient_bound: ArrayLike, weight_decay: ArrayLike, rounds: int, start: float
) -> Array:
    """Return the drift of capped attackers in any one round.

    It is `2 q kappa / (lambda (T + t0))` for attackers of weight q. In several rounds, q is the sum of their weights
    over the rounds. `gradient_bound` is kappa, see `residual_bound`.

    >>> equal_influence_drift(1.0, 0.324345494804537, 0.003, rounds=300, start=4.38333333333333).round(9)
    np.float64(0.710388205)
    """
    q, kappa, decay = floats(weight, gradient_bound, weight_decay)
    return 2.0 * q * kappa / (decay * (rounds + start))


def worst_rounds(drifts: ArrayLike, count: int) -> Array:
    """Return the largest sum of `count` drifts along the first axis.

    That is what attacks in `count` unknown rounds cost.
    Each drift is faded to the end of the run. One round: the largest; as many as there are: all of them.

    >>> worst_rounds([[0.5, 0.1], [0.25, 0.3], [0.0, 0.2]], count=2)
    array([0.75, 0.5 ])
    """
    (each,) = floats(drifts)
    if count < 1:
        raise ValueError(f"at least one round must be attacked, found {count}")
    total: Array = np.flip(np.sort(each, axis=0), axis=0)[:count].sum(axis=0)
    return total


def unknown_rounds_drift(
    terms: ArrayLike, fades: ArrayLike, count: int, *, clip_norms: ArrayLike = np.inf, lasting: bool = True
) -> Array:
    """Return the drift of the worst clients in unknown rounds.

    The result is for the 0, 1, ..., N worst clients in at most `count` rounds. `terms` (rounds, clients), `fades`
    (rounds,) and `clip_norms` are those of `variable_attackers_drift`, for all rounds of the run. Attackers who may be
    others in every round cost the worst `count` rounds of the worst clients in each. Those who stay the same
    (`lasting`) cost no more than that, nor more than the worst clients by the sum of their own worst rounds: the
    smaller bound counts. It is exact for one round, and without clip norms for all rounds.

    >>> unknown_rounds_drift([[0.5, 0.25], [0.125, 0.5]], [1.0, 1.0], 1)
    array([0.  , 0.5 , 0.75])
    >>> unknown_rounds_drift([[0.5, 0.25], [0.125, 0.5]], [1.0, 1.0], 2)
    array([0.   , 0.75 , 1.375])
    """
    each, fade, clips = floats(terms, fades, clip_norms)
    changing = worst_rounds(fade[:, None] * worst_totals(each, clip_norm=clips), count)
    if not lasting:
        return changing
    return np.minimum(changing, worst_totals(worst_rounds(fade[:, None] * each, count)))
