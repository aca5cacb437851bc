"""The batch-spectrum rule for softmax regression: docs/certificates/every-round.md#the-batch-spectrum-rule.

A batch X of n inputs, as the linear model sees them, has `L_s = lambda_max(X^T X / n)`, never above B^2 and far below
it if inputs point in many directions. Its loss is `L_s / 2`-smooth and its gradient at most `sqrt(2 L_s)` long. A
public limit L, and honest clients who multiply the loss of a batch by `min(1, L / L_s)`, make that L for all batches:
`L / 2` takes the place of `B^2 / 2` in the step rule (`largest_rate`), and `sqrt(2 L)` that of `sqrt 2 B` in the bounds
of updates (`residual_bound`). What is measured of batches is rounded up, so that limits hold for what is computed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from crfl_core.certification.formulas._arrays import Array, floats
from crfl_core.certification.formulas.rounding import gamma
from crfl_core.certification.formulas.shift import SampleChange, input_bound_under_poison


def batch_spectrum(inputs: ArrayLike, samples: ArrayLike | None = None) -> Array:
    """Return the spectrum of batches (..., n, d).

    It is not below the exact one, `L_s = lambda_max(X^T X / n)`. A bias counts as a column of its constant input.
    Batches that are filled up with rows of zeros need their numbers of `samples`.

    >>> batch_spectrum([[1.0, 0.0], [0.0, 1.0]]).round(12), batch_spectrum([[1.0, 0.0], [1.0, 0.0]]).round(12)
    (np.float64(0.5), np.float64(1.0))
    """
    x, count = _batches(inputs, samples)
    x, power = _scaled(x)
    size, terms = sorted(x.shape[-2:])
    gram = x @ np.swapaxes(x, -1, -2) if x.shape[-2] == size else np.swapaxes(x, -1, -2) @ x
    largest = np.maximum(np.linalg.eigvalsh(gram)[..., -1], 0.0)
    # The Gram matrix is off by gamma_k of its trace, at most `size` times its norm; its eigenvalues by far less.
    return _times_powers(largest * (1.0 + gamma(size * (terms + 16 * size))) / count, power, power)[()]


def start_gradient(inputs: ArrayLike, labels: ArrayLike, classes: int, samples: ArrayLike | None = None) -> Array:
    """Return the length of a batch's gradient at the model 0.

    It is not below the exact length, `F_s = ||(1/C - Y)^T X|| / n`. `inputs` are (..., n, d), `labels` (..., n); rows
    of zeros as above.

    >>> start_gradient([[1.0, 0.0], [1.0, 0.0]], [0, 1], classes=2).round(12)
    np.float64(0.0)
    """
    x, count = _batches(inputs, samples)
    x, power = _scaled(x)
    residuals = 1.0 / classes - (np.asarray(labels)[..., None] == np.arange(classes))
    gradient = np.swapaxes(residuals, -1, -2) @ x
    lengths = np.sqrt(np.square(residuals).sum((-1, -2)) * np.square(x).sum((-1, -2)))
    length = np.sqrt(np.square(gradient).sum((-1, -2))) + gamma(x.shape[-2] + 16) * lengths
    return _times_powers(length * (1.0 + gamma(classes * x.shape[-1] + 16)) / count, power)[()]


def batch_factor(
    limit: ArrayLike, spectrum: ArrayLike, start_limit: ArrayLike = np.inf, start: ArrayLike = 0.0
) -> Array:
    """Return the factor on the loss of a batch.

    It is `min(1, L / L_s)`. Weight decay is not multiplied. With the ball rule `min(1, L / L_s, F / F_s)`:
    `start_limit` F and the `start_gradient` F_s of the batch.

    >>> batch_factor(0.06, [0.05, 0.08, 0.0]).round(6), batch_factor(0.06, 0.05, start_limit=0.1, start=0.2)
    (array([1.  , 0.75, 1.  ]), np.float64(0.5))
    """
    top, found, start_top, begun = floats(limit, spectrum, start_limit, start)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        by_spectrum = np.where(found > top, top / found, 1.0)
        by_start = np.where(begun > start_top, start_top / begun, 1.0)
    return np.minimum(by_spectrum, by_start)[()]


def spectrum_gradient_bound(limit: ArrayLike) -> Array:
    """Return `sqrt(2 L)`, which bounds every gradient of an honest batch.

    It holds at any model.

    >>> spectrum_gradient_bound(0.0526).round(6)
    np.float64(0.324345)
    """
    return np.sqrt(2.0 * floats(limit)[0])


def spectrum_change(
    change: SampleChange, delta: ArrayLike, *, input_bound: ArrayLike, domain_bound: ArrayLike = np.inf
) -> Array:
    """Return M, the largest change of L_s per poisoned share.

    Poisoning a share k/n of a batch changes L_s by at most `(k/n) M`. M is 0 for labels, `max(B, B')^2` for a replaced
    sample, `(B + B') delta` if that is less for a moved one.

    >>> spectrum_change("features", [0.1, 9.0], input_bound=1.0, domain_bound=1.0)
    array([0.2, 1. ])
    """
    size, bound, domain = floats(delta, input_bound, domain_bound)
    if change == "labels":
        return np.zeros(np.broadcast_shapes(size.shape, bound.shape))[()]
    poisoned = domain if change == "replacement" else input_bound_under_poison(size, bound, domain)
    with np.errstate(over="ignore"):
        replaced = np.square(np.maximum(bound, poisoned))
    if change == "replacement":
        return (replaced + np.zeros_like(size))[()]
    with np.errstate(invalid="ignore", over="ignore"):
        moved = np.where(size > 0, (bound + poisoned) * size, 0.0)
    return np.minimum(moved, replaced)[()]


def factor_shift(change: ArrayLike, limit: ArrayLike, spectrum: ArrayLike = np.inf, share: ArrayLike = 1.0) -> Array:
    """Return what a changed factor adds to the gradient shift G.

    The shift is that of a poisoned sample, and the addition is `M sqrt(2 / L)`. `change` is M. Nothing where the factor
    stays 1 in both worlds: `L_s + (k/n) M <= L` for the observed `spectrum` of the batch and the `share` k/n of it that
    is poisoned.

    >>> factor_shift(0.02, 0.08).round(6), factor_shift(0.02, 0.08, spectrum=0.07, share=0.5)
    (np.float64(0.1), np.float64(0.0))
    """
    moved, top, found, part = floats(change, limit, spectrum, share)
    with np.errstate(invalid="ignore"):
        stays = found + np.where(moved > 0, part * moved, 0.0) <= top
    return np.where(stays, 0.0, moved * np.sqrt(2.0 / top))[()]


def _batches(inputs: ArrayLike, samples: ArrayLike | None) -> tuple[Array, Array]:
    (x,) = floats(inputs)
    if x.ndim < 2 or 0 in x.shape[-2:]:
        raise ValueError(f"batches must be (..., samples, features) with at least one of each, found {x.shape}")
    return x, floats(x.shape[-2] if samples is None else samples)[0]


def _scaled(x: Array) -> tuple[Array, Array]:
    """Return each batch divided by a power of two, and the powers.

    No square underflows or overflows.
    """
    largest = np.clip(np.abs(x).max(axis=(-2, -1)), np.finfo(np.float64).tiny, np.finfo(np.float64).max / 2.0)
    power = np.exp2(np.floor(np.log2(largest)))
    return x / power[..., None, None], power


def _times_powers(found: Array, *powers: Array) -> Array:
    """Multiply by powers of two.

    The product is exact, infinite above all numbers, and rounded up below the smallest ones.
    """
    result = floats(found)[0]
    with np.errstate(over="ignore", invalid="ignore"):
        for power in powers:
            smaller = result * power
            result = np.where((result > 0) & (smaller < np.finfo(np.float64).tiny), np.nextafter(smaller, 1.0), smaller)
    return result
