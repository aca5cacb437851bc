"""What later rounds make of a drift when both worlds share their noise.

See docs/certificates.md#rounds-without-attack. A round maps the broadcast model to the next aggregate. Its
Lipschitz constant c_t bounds how a gap between the two worlds grows; it is 1 for convex losses and `eta <= 2 / beta`,
and below 1 with weight decay.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from crfl_core.certification.formulas._arrays import Array, floats


def round_contraction(weights: ArrayLike, retentions: ArrayLike) -> float:
    """`c_t = |1 - sum_i p_i| + sum_i p_i c_i`, the Lipschitz constant of a clean round.

    `c_i` is a client's `retention`, 1 without weight decay on all parameters. The first summand is 0 for weights that
    sum to 1; with a rate s of the server below 1 they sum to s, and the model keeps `1 - s` of itself.

    >>> round_contraction([0.5, 0.5], [0.5, 0.75]), round_contraction([0.25, 0.25], [0.5, 0.5])
    (0.625, 0.75)
    """
    p, c = floats(weights, retentions)
    return float(abs(1.0 - p.sum()) + (p * c).sum())


def averagedness(learning_rates: ArrayLike, smoothness: ArrayLike, steps: ArrayLike) -> Array:
    """`alpha`: tau gradient steps are `(1 - alpha)` of the identity and `alpha` of some non-expansive map.

    `alpha = tau k / (1 + tau k)`, `k = (eta beta / 2) / (1 - eta beta / 2)`. So an update is `2 alpha`-Lipschitz in the
    model that it starts from.

    >>> averagedness(0.1, 2.0, [1, 5]).round(6)
    array([0.1     , 0.357143])
    """
    rate, beta, count = floats(learning_rates, smoothness, steps)
    single = rate * beta / 2.0
    if (single > 1.0).any():
        raise ValueError(f"learning rate x smoothness must be at most 2, found {2.0 * np.max(single):g}")
    return count * single / (1.0 + (count - 1.0) * single)


def round_expansion(
    weights: ArrayLike, scales: ArrayLike, learning_rates: ArrayLike, smoothness: ArrayLike, steps: ArrayLike
) -> float:
    """`c_t` of a round in which some clients multiply their clean update by gamma_i, as in the scaled clean world.

    `max(1, 2 sum_i p_i gamma_i alpha_i - 1)` with the `averagedness` of each participant.

    >>> round_expansion([0.5, 0.5], [1.0, 1.0], 0.1, 2.0, 5)
    1.0
    >>> round(round_expansion([0.5, 0.5], [10.0, 1.0], 0.1, 2.0, 5), 6)
    2.928571
    """
    p, gamma = floats(weights, scales)
    total = float((p * gamma * averagedness(learning_rates, smoothness, steps)).sum())
    return max(1.0, 2.0 * total - 1.0)


def round_expansion_with_caps(
    weights: ArrayLike, scales: ArrayLike, learning_rates: ArrayLike, smoothness: ArrayLike, steps: ArrayLike
) -> float:
    """The same if the server caps what the multiplying clients submit: `1 + 2 sum_i p_i gamma_i alpha_i` over them.

    A capped update is a projection, which is non-expansive in the update but no longer averaged in the model. One entry
    per client that multiplies; the weights of all clients sum to 1 or less.

    >>> round(round_expansion_with_caps(0.5, 10.0, 0.1, 2.0, 5), 6)
    4.571429
    """
    p, gamma = floats(weights, scales)
    return 1.0 + 2.0 * float((p * gamma * averagedness(learning_rates, smoothness, steps)).sum())


def later_products(lipschitz: ArrayLike) -> Array:
    """`prod_{r > t} c_r` for every round t, by multiplication alone, so that c_r = 0 and long runs are safe.

    >>> later_products([0.9, 0.5, 0.8])
    array([0.4, 0.8, 1. ])
    """
    (c,) = floats(lipschitz)
    return np.concatenate([c[1:], np.ones(min(1, len(c)))])[::-1].cumprod()[::-1]


def accumulated_drift(drifts: ArrayLike, lipschitz: ArrayLike, clip_norms: ArrayLike | None = None) -> Array:
    """`sum_k Delta_k prod_{t > t_k} c_t`: how far apart one run and its clean counterpart can end.

    Rounds stand along the last axis of `drifts`, 0 where nobody attacks. Clipping keeps the worlds within 2 rho_t
    of each other after every round, if `clip_norms` are given; leave them out when the margin of a prediction is taken
    from the aggregate of the final round before its clip.

    >>> accumulated_drift([0.2, 0.0, 0.0, 0.2], np.full(4, 0.5)).round(6)
    np.float64(0.225)
    """
    products = later_products(lipschitz)
    arriving = floats(drifts)[0] * products
    total: Array = arriving.sum(axis=-1)
    if clip_norms is None:
        return total
    # What a clip in round t leaves of all that came before is 2 rho_t; the rounds after it add their own.
    later = np.roll(arriving, -1, axis=-1)
    later[..., -1] = 0.0
    after = np.flip(np.cumsum(np.flip(later, -1), -1), -1)
    capped: Array = (after + 2.0 * floats(clip_norms)[0] * products).min(axis=-1)
    return np.minimum(total, capped)


def persistent_drift(terms: ArrayLike, lipschitz: ArrayLike) -> Array:
    """The drift of attackers that submit anything in every round, with the centred cap.

    `terms` holds `sum_A p_i U_i` of every round, along the last axis: `sum_t 2 terms_t prod_{r > t} c_r`.

    >>> persistent_drift(np.full(1000, 0.01), np.full(1000, 0.9)).round(6)
    np.float64(0.2)
    """
    return accumulated_drift(2.0 * floats(terms)[0], lipschitz)


def persistent_drift_limit(terms: ArrayLike, lipschitz: ArrayLike) -> float:
    """`2 max_t terms_t / (1 - max_t c_t)`: bounds `persistent_drift` for any number of rounds; infinite if c = 1.

    >>> round(persistent_drift_limit([0.01, 0.02], [0.9, 0.8]), 6)
    0.4
    """
    largest, slowest = (float(values.max()) for values in floats(terms, lipschitz))
    if largest == 0.0:
        return 0.0
    return 2.0 * largest / (1.0 - slowest) if slowest < 1.0 else np.inf
