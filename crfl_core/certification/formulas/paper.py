"""The paper's Theorems 1 to 3 and Corollary 1, as printed. docs/concepts.md says what they do not prove."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfl_core.certification.formulas import _special as special

Array = NDArray[np.float64]


def kl_budget(p_a: ArrayLike, p_b: ArrayLike) -> Array:
    """Return the KL divergence below which a vote cannot change (Theorem 3).

    It is 0 where `p_a <= p_b`.
    `eps = -log(1 - (sqrt p_A - sqrt p_B)^2)`. The square is taken of `(p_A - p_B) / (sqrt p_A + sqrt p_B)`, and the
    difference from 1, where it is small, is computed as `(1 - p_A - p_B) + 2 sqrt(p_A p_B)`: neither cancels.

    >>> kl_budget(0.7, 0.1).round(12)
    np.float64(0.315875447208)
    """
    first = np.asarray(p_a, np.float64)
    second = np.asarray(p_b, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        square = np.square((first - second) / (np.sqrt(first) + np.sqrt(second)))
        rest = (1.0 - first - second) + 2.0 * np.sqrt(first * second)
        budget = np.where(square < 0.5, -np.log1p(-square), -np.log(rest))
    return np.where(first > second, budget, 0.0)[()]


def gradient_lipschitz(clip_norm: float) -> float:
    """Return the paper's `L_Z = sqrt(2 + 2 rho + rho^2)`.

    This is Lemma 1. It is true for inputs of norm at most 2, false beyond.

    >>> round(gradient_lipschitz(3.0), 12)
    4.123105625618
    """
    return float(np.sqrt(2.0 + 2.0 * clip_norm + clip_norm**2))


def log_contraction(clip_norms: ArrayLike, noise_stds: ArrayLike) -> float:
    """Return the log of the contraction after the attack.

    It comes from the rounds after the attack, 0 for none. It is `sum_t log(2 Phi(rho_t / sigma_t) - 1)`.
    `2 Phi(x) - 1 = erf(x / sqrt 2)`, as `1 - erfc(x / sqrt 2)` where it is close to 1, so the sum stays exact where the
    factor rounds to 1. A round without noise contracts nothing: its factor is 1.

    >>> log_contraction([1.0], [1.0])  # doctest: +ELLIPSIS
    -0.3817...
    """
    return float(_log_factors(clip_norms, noise_stds).sum())


def _log_factors(clip_norms: ArrayLike, noise_stds: ArrayLike) -> Array:
    """Return `log(2 Phi(rho_t / sigma_t) - 1)` of every round."""
    norms = np.asarray(clip_norms, np.float64)
    stds = np.asarray(noise_stds, np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        x = np.where(stds > 0, norms / stds, np.inf) / np.sqrt(2.0)
        factors: Array = np.where(x < 1.0, np.log(special.erf(x)), np.log1p(-special.erfc(x)))
        return factors


def attack_divergence(deltas: ArrayLike, *, noise_std: float, lipschitz: float, strengths: ArrayLike) -> float:
    """Return what an attacked round adds to the KL divergence.

    The divergence is that of the two models. There is a `delta` for every attacker.
    `2 R sum_i (S_i L_Z delta_i)^2 / sigma^2`, the bound of Theorem 2 before any later round. Theorem 1 says of a vote
    that it is unchanged if what later rounds leave of this is at most `kl_budget`. Infinite without noise.

    >>> attack_divergence([0.1], noise_std=0.01, lipschitz=4.123105625617661, strengths=[7.5e-4])  # doctest: +ELLIPSIS
    0.0019125...
    """
    moved = np.asarray(strengths, np.float64) * lipschitz * np.asarray(deltas, np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found = 2.0 * len(moved) * np.square(np.hypot.reduce(moved) / noise_std)
    return float(found) if moved.any() else 0.0


def divergence_by_round(added: ArrayLike, clip_norms: ArrayLike, noise_stds: ArrayLike) -> Array:
    """Bound the KL divergence after each of some rounds (Theorem 2).

    The last entry is the bound for the final models.
    `added` is what the attack adds in a round, 0 if there is none: such a round multiplies what there is by
    `2 Phi(rho_t / sigma_t) - 1`. An attacked round contracts nothing, and adds: that is what the paper's remark on
    attacks of a fixed frequency comes to, by the chain rule of the KL divergence.

    >>> divergence_by_round([0.2, 0.0, 0.0, 0.2], [1.0] * 4, [1.0] * 4).round(4)
    array([0.2   , 0.1365, 0.0932, 0.2932])
    """
    amounts = np.asarray(added, np.float64)
    factors = np.where(amounts > 0, 1.0, np.exp(_log_factors(clip_norms, noise_stds)))
    found = np.zeros(len(amounts))
    total = 0.0
    for place, (amount, factor) in enumerate(zip(amounts, factors, strict=True)):
        total = total * factor + amount
        found[place] = total
    return found


def joint_log_radius(log_radii: ArrayLike) -> Array:
    """Return the log of several attacked rounds' joint radius.

    Rounds are along axis 0. Each round has a radius of its own if it is attacked alone. The divergences of the rounds
    add up and grow with the square of delta: `RAD^-2 = sum_t RAD_t^-2`, each RAD_t with the contraction of those later
    rounds without an attack.

    >>> np.exp(joint_log_radius(np.log([3.0, 4.0]))).round(12)
    np.float64(2.4)
    """
    return np.asarray(-0.5 * np.logaddexp.reduce(-2.0 * np.asarray(log_radii, np.float64), axis=0))[()]


def log_radius(
    budget: ArrayLike,
    *,
    noise_std: float,
    lipschitz: float,
    strengths: ArrayLike,
    contraction: float,
) -> Array:
    """Return the logarithm of Corollary 1's radius.

    `RAD = sigma sqrt(eps / 2) exp(-contraction / 2) / (L_Z sqrt(R sum_i S_i^2))` with
    `S_i = p_i gamma_i tau_i eta_i q_i/n_i` for the R attackers in `strengths`, sigma the noise of the attacked round
    and `contraction` the log of the product over the rounds after it. -inf where there is no budget or no noise, else
    +inf where the attackers can do nothing.

    >>> log_radius(  # doctest: +ELLIPSIS
    ...     0.31587544720812, noise_std=0.01, lipschitz=4.123105625617661, strengths=[7.5e-4], contraction=0.0
    ... )
    np.float64(0.2508832543881...)
    """
    budgets = np.asarray(budget, np.float64)
    each = np.asarray(strengths, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        numerator = np.log(noise_std) + 0.5 * np.log(budgets / 2.0)
        denominator = np.log(lipschitz) + 0.5 * np.log(len(each)) + np.log(np.hypot.reduce(each))
        result = numerator - denominator - 0.5 * contraction
    return np.where((budgets > 0) & (noise_std > 0), result, -np.inf)[()]
