"""Propagation of a drift through later rounds, when both worlds share their noise.

See docs/certificates.md#rounds-without-attack. A round maps the broadcast model to the next aggregate. Its
Lipschitz constant c_t bounds how a gap between the two worlds grows; it is 1 for convex losses and `eta <= 2 / beta`,
and below 1 with weight decay.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from crfl_core.certification.formulas._arrays import Array, floats


def round_contraction(weights: ArrayLike, retentions: ArrayLike) -> float:
    """Return the Lipschitz constant of a clean round.

    `c_t = |1 - sum_i p_i| + sum_i p_i c_i`.
    `c_i` is a client's `retention`, 1 without weight decay on all parameters. The first summand is 0 for weights that
    sum to 1; with a rate s of the server below 1 they sum to s, and the model keeps `1 - s` of itself.

    >>> round_contraction([0.5, 0.5], [0.5, 0.75]), round_contraction([0.25, 0.25], [0.5, 0.5])
    (0.625, 0.75)
    """
    p, c = floats(weights, retentions)
    return float(abs(1.0 - p.sum()) + (p * c).sum())


def averagedness(learning_rates: ArrayLike, smoothness: ArrayLike, steps: ArrayLike) -> Array:
    """Return alpha, with which tau gradient steps are an averaged map.

    The steps are `(1 - alpha)` of the identity and `alpha` of some non-expansive map.
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
    """Return the Lipschitz constant of a round with multiplied updates.

    Clients multiply their clean updates. Client i multiplies by gamma_i, as in the scaled clean world.
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
    """Return `round_expansion` if the server caps the multiplied updates.

    `1 + 2 sum_i p_i gamma_i alpha_i` over these clients.
    A capped update is a projection, which is non-expansive in the update but no longer averaged in the model. One entry
    per client that multiplies; the weights of all clients sum to 1 or less.

    >>> round(round_expansion_with_caps(0.5, 10.0, 0.1, 2.0, 5), 6)
    4.571429
    """
    p, gamma = floats(weights, scales)
    return 1.0 + 2.0 * float((p * gamma * averagedness(learning_rates, smoothness, steps)).sum())


def later_products(lipschitz: ArrayLike) -> Array:
    """Return `prod_{r > t} c_r` for every round t.

    Only by multiplication, so that c_r = 0 and long runs are safe.

    >>> later_products([0.9, 0.5, 0.8])
    array([0.4, 0.8, 1. ])
    """
    (c,) = floats(lipschitz)
    return np.concatenate([c[1:], np.ones(min(1, len(c)))])[::-1].cumprod()[::-1]
