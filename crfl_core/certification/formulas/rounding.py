"""Rounding error of training and logits in float64: docs/certificates.md#rounding.

Proved for softmax regression as the core trains it, from numbers that the ledger has. With the unit roundoff
`u = 2^-53`, k additions or products in any order are off by at most `gamma_k = k u / (1 - k u)` of the sum of absolute
values (Higham, chapter 3). What is relied upon: IEEE arithmetic rounded to nearest, sums and products in any order
and blocking, fused or not (but no Strassen), a square root within 2 units in the last place and an exponential within
4. What overflows certifies nothing; what underflows, squares of short vectors as well, is covered by `UNDERFLOW`.

One client, at a model of norm M, in units of u and per step: the logits are off by `(d + 1) B M`, which changes
probabilities by half of that, since `||S|| <= 1/2`; their own rounding is `C + 2 log C + 18` at most, because
`sum_c P_c |z_c - max z| <= log C`; the mean over a batch of b adds `(b + 6) sqrt 2`, all this times `eta B`; adding it
to the weights, which decay, `(b + 6) M`. Steps do not expand errors, so those of tau steps add up. The server's part:
norms of P numbers are off by `(P / 2 + 2)` of themselves, and cap, weighted sum, clip and noise do the rest. The
constants below are larger than these counts; `SECOND_ORDER` covers products of errors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from crfl_core.certification.formulas._arrays import Array, floats
from crfl_core.certification.formulas.budget import tradeoff_budget
from crfl_core.certification.formulas.drift import update_bound
from crfl_core.certification.formulas.propagation import later_products

UNIT_ROUNDOFF = 2.0**-53
"""The largest relative error of one rounding, u."""
SECOND_ORDER = 1.01
"""Errors of errors, as long as all counts of operations stay below 2^43."""
UNDERFLOW = 2.0**-480
"""More than all products and exponentials of a round that underflow can add up to, and norms whose squares do."""
SHORTEST_INPUT = 2.0**-900
"""Norm of test inputs, or std of their logits, below which nothing is certified: products may lose their digits."""
SHORT_INPUT = 2.0**-110
"""Share of its norm by which what underflows may move a logit of an input that is not too short, per feature."""
NEARLY_CLIPPED = 1.0 / 16.0
"""Relative distance below the clip norm at which neither a model nor a nearly equal one is clipped."""
FARTHEST_NOISE = 40.0
"""Number of stds by which noise exceeds its typical norm with probability exp(-800), 0 in floating point."""


class ModelSize(NamedTuple):
    """Of a linear model: d `features` (the bias not counted) and C `classes`."""

    features: int
    classes: int

    @property
    def parameters(self) -> int:
        """Return P, the number of parameters with the bias."""
        return (self.features + 1) * self.classes


class LocalSteps(NamedTuple):
    """Training of the clients of a round, clients along the last axis; `input_bound` bounds inputs with the bias: B."""

    learning_rate: ArrayLike
    steps: ArrayLike
    batch_size: ArrayLike
    weight_decay: ArrayLike
    input_bound: ArrayLike


class Aggregation(NamedTuple):
    """Aggregation of the clients' messages by a server, clients along the last axis of all but `clip_norm`.

    `message_bound` bounds the centred residuals that enter the sum in either world: the caps, or without a cap the
    larger of the observed norm and of what honest training can reach. A client that multiplies its update counts with
    its weight times its scale.
    """

    weight: ArrayLike
    message_bound: ArrayLike
    retention: ArrayLike
    clip_norm: ArrayLike


class Rounding(NamedTuple):
    """`error` is what rounding moves in one world, at the observed start; `growth` adds to a Lipschitz constant.

    Two worlds that start g apart end at most `(c + growth) g + drift + 2 error` apart: the other world's start, of
    which only the distance is known, is longer by g at most, and errors grow with it.
    """

    error: Array
    growth: Array


def gamma(count: ArrayLike) -> Array:
    """Return the relative error of k roundings.

    This is `gamma_k = k u / (1 - k u)`.

    >>> float(gamma(1000)) / 2.0**-53
    1000.0000000001111
    """
    (k,) = floats(count)
    return k * UNIT_ROUNDOFF / (1.0 - k * UNIT_ROUNDOFF)


def logit_rounding(features: int, model_norm: ArrayLike) -> Array:
    """Return the parameter drift that equals the rounding of logits.

    It includes the rounding of input norms. Computed logits are the exact ones of a model this far away: their error
    `gamma_{d+1} ||x|| ||W||` is that of a matrix of rank one and of norm `gamma_{d+1} ||W||`; a wrong norm of x only
    scales the model. Products of inputs of norm `SHORTEST_INPUT` or more lose at most `SHORT_INPUT` of that norm to
    underflow.

    >>> logit_rounding(784, 3.0) < 1e-12
    np.True_
    """
    (norm,) = floats(model_norm)
    return gamma(2 * features + 32) * norm + (features + 8) * SHORT_INPUT


def local_rounding(size: ModelSize, local: LocalSteps, start_norm: ArrayLike) -> Rounding:
    """Bound what float64 does to each client's update.

    Local training starts from a model of norm `start_norm`. Covers the honest update that a cap shortens only because
    it, the bound or the retention was rounded.

    >>> local_rounding(ModelSize(784, 10), LocalSteps(0.001, 30, 100, 0.0, 9.25), 3.0).error < 3e-12
    np.True_
    """
    rate, steps, batch, decay, bound = floats(*local)
    (start,) = floats(start_norm)
    reach = update_bound(rate, steps, bound, decay)
    with np.errstate(over="ignore"):
        of_logits = 0.5 * (size.features + 8) * rate * np.square(bound)
    of_weights = steps * (batch + 16.0 + of_logits) + 9.0
    of_gradients = rate * bound * (math.sqrt(2.0) * (batch + 32.0) + 2.0 * size.classes + 40.0)
    units = of_weights * (start + reach) + steps * of_gradients + (size.features + 64.0) * reach
    # The rule `eta <= 2 / beta` was checked with rounded norms, so a step may expand by twice their error.
    growing = of_weights + 2.0 * steps * (size.features + 16.0)
    return Rounding(SECOND_ORDER * UNIT_ROUNDOFF * units, SECOND_ORDER * UNIT_ROUNDOFF * growing)


def weight_norm_bound(size: ModelSize, operator_norm: ArrayLike, local: LocalSteps, start_norm: ArrayLike) -> Array:
    """Bound the spectral norm of each client's computed weights, for `gradient_shift`.

    `operator_norm` was computed from the Gram matrix of the centred weights, C x C, and local models leave the path of
    exact ones by their `local_rounding`.

    >>> local = LocalSteps(0.001, 30, 100, 0.0, 9.25)
    >>> float(weight_norm_bound(ModelSize(784, 10), 2.0, local, 3.0) - 2.0) < 1e-11
    True
    """
    norm, start = floats(operator_norm, start_norm)
    of_products = gamma(size.classes * (size.features + 16 * size.classes))
    centring = (size.classes + 2) * UNIT_ROUNDOFF * start
    return norm * (1.0 + of_products) + centring + local_rounding(size, local, start).error + UNDERFLOW


def server_rounding(parameters: int, aggregation: Aggregation, start_norm: ArrayLike) -> Rounding:
    """Bound what float64 does to the model on the server.

    This covers cap, sum, clip and noise. The updates are taken as they are.

    >>> server_rounding(7850, Aggregation(np.full(20, 0.05), 0.4, 1.0, 15.0), 3.0).error < 1e-12
    np.True_
    """
    weight, bound, kept = np.broadcast_arrays(*floats(*aggregation[:3]))
    start, clip = floats(start_norm, aggregation.clip_norm)
    clients = weight.shape[-1]
    total = weight.sum(axis=-1)
    pulled = (weight * (1.0 - kept)).sum(axis=-1)
    moved = (weight * bound).sum(axis=-1) + pulled * start
    of_norms = parameters / 2.0 + 32.0
    units = (clients + 9.0) * moved + of_norms * (weight * bound).sum(axis=-1) + (16.0 * total + 2.0) * start
    growing = (clients + 9.0) * pulled + 16.0 * total + clients + 32.0
    # A model well below the clip norm meets the clip only in another world, one that is as far away as that norm.
    longest = start + moved
    with np.errstate(invalid="ignore"):
        free = (longest < (1.0 - NEARLY_CLIPPED) * clip) | np.isinf(clip)
        room = np.where(free & np.isfinite(clip), 1.0 - longest / clip, 1.0)
    units = units + np.where(free, 0.0, of_norms * np.minimum(clip, longest))
    growing = growing + of_norms * (1.0 + pulled) / room
    return Rounding(SECOND_ORDER * UNIT_ROUNDOFF * units + UNDERFLOW, SECOND_ORDER * UNIT_ROUNDOFF * growing)


def round_rounding(size: ModelSize, local: LocalSteps, aggregation: Aggregation, start_norm: ArrayLike) -> Rounding:
    """Bound what float64 does to a whole round.

    A round goes from one broadcast model to the next. Rounds may stand along leading axes, of `start_norm` and
    `clip_norm` too.

    >>> local, server = LocalSteps(0.001, 30, 100, 0.0, 9.25), Aggregation(np.full(20, 0.05), 0.4, 1.0, 15.0)
    >>> round_rounding(ModelSize(784, 10), local, server, [1.0, 3.0]).error < 4e-12
    array([ True,  True])
    """
    starts = floats(start_norm)[0]
    trained = local_rounding(size, local, starts[..., None])
    served = server_rounding(size.parameters, aggregation, starts)
    (weight,) = floats(aggregation.weight)
    error, growth = ((weight * each).sum(axis=-1) for each in trained)
    return Rounding(error + served.error, growth + served.growth)


def rounding_drift(rounding: Rounding, lipschitz: ArrayLike) -> Array:
    """Return how far rounding drives worlds apart, for every t.

    The worlds part in round t, and the drift is `sum_{r >= t} 2 error_r f_r`, `f_r` being the product of `c + growth`
    over the rounds after r. Until they part, both worlds are the same bit for bit.

    >>> rounding_drift(Rounding(np.array([1e-12, 1e-12]), np.zeros(2)), [1.0, 0.5]).tolist()
    [3e-12, 2e-12]
    """
    products = later_products(floats(lipschitz)[0] + rounding.growth)
    total: Array = 2.0 * (rounding.error * products)[::-1].cumsum()[::-1]
    return total


def rounding_budget(rounding: Rounding, noise_stds: ArrayLike, lipschitz: ArrayLike) -> float:
    """Return the trade-off budget of rounding.

    It is for rounds whose noise is drawn again. It is subtracted from the threshold. One entry per round. Every round
    adds a drift of `2 error`, which its noise and that of later rounds hides; the budgets of an attack and of rounding
    add up. After the last noise both worlds are the same bit for bit.

    >>> rounding = Rounding(np.array([1e-12, 1e-12, 5.0]), np.zeros(3))
    >>> rounding_budget(rounding, [0.1, 0.1, 0.0], np.ones(3))  # doctest: +ELLIPSIS
    2.828...e-11
    """
    stds, constants = floats(noise_stds, lipschitz)
    noise_follows = np.maximum.accumulate(stds[::-1])[::-1] > 0
    return float(tradeoff_budget(np.where(noise_follows, 2.0 * rounding.error, 0.0), stds, constants + rounding.growth))


def noisy_norm(clip_norm: ArrayLike, noise_std: ArrayLike, parameters: int) -> Array:
    """Bound the norm of every clipped and noised model.

    The bound holds up to probability exp(-800). For rounds whose noise is drawn again, where no norm was observed:
    `rho + sigma (sqrt P + 40)`.

    >>> noisy_norm(3.0, 0.01, 7850).round(3)
    np.float64(4.286)
    """
    clip, std = floats(clip_norm, noise_std)
    return clip + std * (math.sqrt(parameters) + FARTHEST_NOISE)
