"""The trade-off (Gaussian differential privacy) budget of a run: docs/certificates.md#the-trade-off-budget.

A budget mu says that telling the two worlds' final noisy models apart is no easier than telling N(0, 1) from N(mu, 1).
Arguments are per round: injected drift, noise that the votes draw again (0 where they do not), and the Lipschitz
constant of the clean round. They must hold for all models, not only the observed ones, in rounds whose noise is drawn
again.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from crfl_core.certification.formulas._arrays import Array, floats
from crfl_core.certification.formulas.propagation import later_products


def tradeoff_budget(drifts: ArrayLike, noise_stds: ArrayLike, lipschitz: ArrayLike) -> Array:
    """Return the trade-off budget mu of any number of attacked rounds.

    Rounds stand along the last axis; `drifts` may have more axes.
    With `d_t = Delta_t prod_{r>t} c_r` and `v_t = (s_t prod_{r>t} c_r)^2`, noise may hide a drift in its own round or
    later. The best way to share it out is isotonic: pool adjacent rounds until `sum d / sum v` increases from
    block to block, then `mu^2 = sum_blocks (sum d)^2 / sum v`. Infinite if a drift meets no noise from its round on.
    Never above plain composition, `sqrt(sum (Delta_t / s_t)^2)`, which needs no Lipschitz constants.

    >>> tradeoff_budget([0.2, 0.0, 0.0, 0.2], np.full(4, 0.1), np.ones(4)).round(6)
    np.float64(2.309401)
    >>> tradeoff_budget([0.2, 0.0, 0.0, 0.2], [0.0, 0.0, 0.0, 0.1], np.ones(4)).round(6)
    np.float64(4.0)
    """
    products = later_products(lipschitz)
    arriving, stds = floats(drifts, noise_stds)
    arriving = arriving * products
    variances = np.square(stds * products)
    budgets = [_pooled(row, variances) for row in arriving.reshape(-1, arriving.shape[-1])]
    return np.reshape(budgets, arriving.shape[:-1])[()]


def budget_per_unit_drift(noise_stds: ArrayLike, lipschitz: ArrayLike) -> Array:
    """Return the trade-off budget of a unit drift in each single round.

    A single attack of drift D costs D times as much.
    Without contraction `1 / sqrt(sum_{r >= t} s_r^2)`. Infinite where no noise follows, 0 where a later round forgets
    everything. An unknown attacked round costs the maximum over its window.

    >>> budget_per_unit_drift(np.full(4, 0.1), np.ones(4)).round(6)
    array([ 5.      ,  5.773503,  7.071068, 10.      ])
    """
    products = later_products(lipschitz)
    hiding = np.sqrt(np.square(floats(noise_stds)[0] * products)[::-1].cumsum()[::-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(products > 0, products / hiding, 0.0)


def _pooled(drifts: Array, variances: Array) -> float:
    attacked = np.flatnonzero(drifts > 0)
    if len(attacked) == 0:
        return 0.0
    # Rounds without drift always join the block before them, and hide nothing if there is none: a single pass over
    # the attacked rounds is enough.
    hiding = np.add.reduceat(variances, attacked)
    blocks: list[tuple[float, float]] = []
    for block in zip(drifts[attacked].tolist(), hiding.tolist(), strict=True):
        while blocks and _rate(blocks[-1]) >= _rate(block):
            drift, variance = blocks.pop()
            block = (block[0] + drift, block[1] + variance)
        blocks.append(block)
    return math.sqrt(math.fsum(_rate(block) * block[0] for block in blocks))


def _rate(block: tuple[float, float]) -> float:
    drift, variance = block
    return drift / variance if variance > 0 else math.inf
