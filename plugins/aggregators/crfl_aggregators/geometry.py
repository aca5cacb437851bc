"""Norms, distances and angles of updates, in double precision and block by block instead of in a second copy.

Distances come from the products of all pairs, which must not hide small distances behind the length that all updates
share, nor behind one huge update. So updates are seen from one of them, of median norm: a mean could be moved by a
single client at will. For updates in single precision this comes after the products: in double precision these are
exact, and what their sum loses is far less than the updates lost when they were rounded.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

BLOCK_NUMBERS = 2**17
"""How many numbers a block should have: 1 MiB in double precision stays in the cache of a core."""

ROUNDING = 64 * np.finfo(np.float64).eps
"""Squared distances below this share of the squared lengths are rounding: such updates are the same."""

SAME_ANGLE = 1e-12
"""Cosines that differ by less than this differ by rounding."""

NARROWEST = 512
"""A block has at least so many columns, or products of many clients would mostly move their result around; and a piece
of a row whose norm is taken has so many."""


def column_blocks(values: Tensor) -> Iterator[slice]:
    """The columns of (n, P) values in blocks, all rows in each."""
    clients, size = values.shape
    width = max(NARROWEST, BLOCK_NUMBERS // clients)
    for first in range(0, size, width):
        yield slice(first, min(size, first + width))


def norms(values: Tensor, shift: Tensor | None = None, shares: Tensor | None = None) -> Tensor:
    """The norms of the rows, or of `values[i] + shares[i] * shift`, in float64."""
    if shift is None or shares is None:
        return whole_norms(values)
    squares = values.new_zeros(len(values), dtype=torch.float64)
    for columns in column_blocks(values):
        block = values[:, columns]
        squares += whole_norms(torch.addr(block, shares.to(block), shift[columns].to(block))).square()
    return squares.sqrt()


def whole_norms(values: Tensor) -> Tensor:
    """The norms of the rows, whose pieces are short enough for the precision of the values and added in float64."""
    pieces, rest = divmod(values.shape[1], NARROWEST)
    head, tail = values.split([pieces * NARROWEST, rest], dim=1)
    lengths = torch.linalg.vector_norm(head.unflatten(1, (pieces, NARROWEST)), dim=2)
    last = torch.linalg.vector_norm(tail, dim=1, keepdim=True)
    total: Tensor = torch.linalg.vector_norm(torch.cat([lengths, last], dim=1).double(), dim=1)
    return total


def gram(values: Tensor, origin: Tensor | None = None, mixing: Array | None = None) -> Array:
    """The products `<v_i, v_j>` of all pairs of `v = u - origin`, (n, n), or of the mixtures `mixing @ v`, (m, m)."""
    shares = None if mixing is None else torch.from_numpy(mixing).to(values.device)
    rows = len(values) if shares is None else len(shares)
    products = values.new_zeros(rows, rows, dtype=torch.float64)
    blocks = list(column_blocks(values))
    # One buffer for all blocks: memory that is asked for anew each time costs as much as the products.
    buffer = values.new_empty(len(values), blocks[0].stop, dtype=torch.float64)
    for columns in blocks:
        block = buffer[:, : columns.stop - columns.start].copy_(values[:, columns])
        if origin is not None:
            block -= origin[columns]
        if shares is not None:
            block = shares @ block
        products.addmm_(block, block.T)
    return products.cpu().numpy()


def central_products(values: Tensor, mixing: Array | None = None) -> Array:
    """The products `<u_i - u_c, u_j - u_c>` of all pairs, (n, n), for a `u_c` of median norm.

    Or those of the mixtures `mixing @ u`, whose rows sum to 1, (m, m).
    """
    if values.dtype == torch.float64:
        return gram(values, values[norms(values).argsort()[(len(values) - 1) // 2]], mixing)
    products = gram(values, None, mixing)
    squares = np.diag(products)
    central = np.argsort(squares)[(len(squares) - 1) // 2]
    seen: Array = products - products[central] - products[:, [central]] + squares[central]
    same = np.diag(seen) <= ROUNDING * (squares + squares[central])
    seen[same] = seen[:, same] = 0.0
    return seen


def squared_distances(products: Array) -> Array:
    """`||u_i - u_j||^2` of all pairs, from their `central_products`."""
    lengths = np.add.outer(np.diag(products), np.diag(products))
    distances = lengths - products - products.T
    return np.where(distances > ROUNDING * lengths, distances, 0.0)


def cosines(values: Tensor) -> Array:
    """The cosine of the angle between all pairs, (n, n); 0 with an update that is zero."""
    products = gram(values)
    lengths = np.sqrt(np.diag(products))
    scale = np.outer(lengths, lengths)
    angles: Array = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
    return np.clip(angles, -1.0, 1.0)


def weighted_sum(weights: Array, values: Tensor) -> Tensor:
    """`sum_i weights[i] * values[i]`, in the precision of the values."""
    chosen = np.flatnonzero(weights)
    if len(chosen) == 1:  # no need to read the others
        return float(weights[chosen[0]]) * values[int(chosen[0])]
    return torch.from_numpy(weights).to(values) @ values
