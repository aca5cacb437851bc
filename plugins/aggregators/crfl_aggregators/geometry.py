"""Norms, distances and angles of updates, in double precision and block by block instead of in a second copy.

Distances come from the products of all pairs, which must not hide small distances behind the length that all updates
share, nor behind one huge update. So updates are seen from one of them, of median norm: a mean could be moved by a
single client at will. For updates in single precision this comes after the products: in double precision these are
exact, and what their sum loses is far less than the updates lost when they were rounded.

Nothing overflows, whatever finite numbers are submitted: an update too long for products keeps its direction and
counts as `LONGEST`. So a minority of huge updates does not change how far the others are from each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

NUMBERS_PER_BLOCK = 2**17
"""Numbers in a block: 1 MiB in double precision stays in the cache of a core."""

COINCIDENCE_TOLERANCE = 64 * np.finfo(np.float64).eps
"""Squared distances below this share of the squared lengths are rounding: such updates are the same."""

LONGEST_UPDATE = 2.0**500
"""The square of a longer update might not be finite. About 3e150."""

COSINE_TOLERANCE = 1e-12
"""Cosines that differ by less than this differ by rounding."""

MIN_BLOCK_COLUMNS = 256
"""The least number of columns of a block, or products of many clients would mostly move their result around."""

NORM_PIECE_COLUMNS = 512
"""The length of the pieces of a row whose norm is taken."""

TILE_ROWS = 128
"""Rows and columns of the squares in which products become distances."""

PRODUCTS_PER_BLOCK = 2**15
"""Products of pairs that are looked at together: results that are made of them must be small."""


def block_width(clients: int, narrowest: int | None = None) -> int:
    """Return the number of columns of a block with `clients` rows."""
    return max(narrowest or MIN_BLOCK_COLUMNS, NUMBERS_PER_BLOCK // clients)


def column_blocks(values: Tensor, narrowest: int | None = None) -> Iterator[slice]:
    """Yield the columns of (n, P) values in blocks.

    Each block has all rows.
    """
    clients, size = values.shape
    width = block_width(clients, narrowest)
    for first in range(0, size, width):
        yield slice(first, min(size, first + width))


def row_blocks(matrix: Array) -> Iterator[slice]:
    """Yield the rows of (n, n) products in blocks."""
    width = max(1, PRODUCTS_PER_BLOCK // max(1, len(matrix)))
    for first in range(0, len(matrix), width):
        yield slice(first, min(len(matrix), first + width))


def norms(values: Tensor, shift: Tensor | None = None, shares: Tensor | None = None) -> Tensor:
    """Compute the norms of the rows in float64.

    With `shift` and `shares`, the rows are `values[i] + shares[i] * shift`.
    """
    if shift is None or shares is None:
        lengths = norms_in_pieces(values)
    else:
        squares = values.new_zeros(len(values), dtype=torch.float64)
        for columns in column_blocks(values, NORM_PIECE_COLUMNS):
            block = values[:, columns]
            squares += norms_in_pieces(torch.addr(block, shares.to(block), shift[columns].to(block))).square()
        lengths = squares.sqrt()
    if not lengths.isfinite().all():  # squares overflow long before the numbers do
        long = ~lengths.isfinite()
        rows = values[long].double()
        if shift is not None and shares is not None:
            rows = torch.addr(rows, shares[long].double(), shift.double())
        largest = rows.abs().amax(dim=1, keepdim=True)
        scaled = largest[:, 0] * torch.linalg.vector_norm(rows / largest, dim=1)
        lengths[long] = scaled.nan_to_num(nan=torch.inf, posinf=torch.inf)
    return lengths


def norms_in_pieces(values: Tensor) -> Tensor:
    """Compute the norms of the rows in pieces.

    Pieces are short enough for the precision of the values, and added in float64.
    """
    pieces, rest = divmod(values.shape[1], NORM_PIECE_COLUMNS)
    head, tail = values.split([pieces * NORM_PIECE_COLUMNS, rest], dim=1)
    lengths = torch.linalg.vector_norm(head.unflatten(1, (pieces, NORM_PIECE_COLUMNS)), dim=2)
    last = torch.linalg.vector_norm(tail, dim=1, keepdim=True)
    total: Tensor = torch.linalg.vector_norm(torch.cat([lengths, last], dim=1).double(), dim=1)
    return total


def gram_matrix(
    values: Tensor,
    origin: Tensor | None = None,
    mixing: Array | None = None,
    factors: Tensor | None = None,
    rows: Tensor | None = None,
) -> Array:
    """Compute the inner products of all pairs of updates, (n, n).

    The product of a pair is `<v_i, v_j>` with `v = u - origin`. With `mixing`, the pairs are those of the mixtures
    `mixing @ v`, (m, m).

    With `factors`, `v_i = factors[i] (u_i - origin)`, where infinite numbers count as the largest there are. With
    `rows`, the pairs are those of these rows of the values.
    """
    shares = None if mixing is None else torch.from_numpy(mixing).to(values.device)
    clients = len(values) if rows is None else len(rows)
    size = clients if shares is None else len(shares)
    products = values.new_zeros(size, size, dtype=torch.float64)
    blocks = list(column_blocks(values))
    # One buffer for all blocks: allocating it each time costs as much as the products.
    buffer = values.new_empty(clients, blocks[0].stop, dtype=torch.float64)
    for columns in blocks:
        seen = values[:, columns] if rows is None else values[:, columns][rows]
        block = buffer[:, : columns.stop - columns.start].copy_(seen if factors is None else seen.nan_to_num())
        if factors is not None:
            block *= factors[:, None]
        if origin is not None:
            block -= origin[columns] if factors is None else torch.outer(factors, origin[columns])
        if shares is not None:
            block = shares @ block
        products.addmm_(block, block.T)
    return products.cpu().numpy()


@dataclass(frozen=True)
class CentralView:
    """Updates, or mixtures of them, as seen from one of median norm, `u_c`.

    - `products`: `<u_i - u_c, u_j - u_c>` of all pairs, (n, n), or (m, m) for mixtures;
    - `factors`: with which each update entered, (n,): 1, less if it is longer than `LONGEST`;
    - `lengths`, (n,) or (m,), and `resolution`: rounding moves no update by more than `resolution * lengths[i]`.
    """

    products: Array
    factors: Array
    lengths: Array
    resolution: float


def central_view(values: Tensor, mixing: Array | None = None) -> CentralView:
    """View the updates from one of them.

    With `mixing`, the view is of the mixtures `mixing @ u`. The rows of `mixing` sum to 1.
    """
    if values.dtype == torch.float64:
        norm = norms(values)
        shrunk = (LONGEST_UPDATE / norm.clamp(max=torch.finfo(norm.dtype).max)).clamp(max=1.0)
        central = norm.argsort()[(len(values) - 1) // 2]
        products = gram_matrix(values, values[central], mixing, shrunk if bool((shrunk < 1).any()) else None)
        # Weights that sum to 1 up to rounding move the origin as well.
        lengths = np.sqrt(np.diag(products)) + np.sqrt(np.finfo(np.float64).eps) * float(norm[central])
        return CentralView(products, shrunk.cpu().numpy(), lengths, resolution(values))
    products = gram_matrix(values, None, mixing)
    squares = np.diag(products)
    central = np.argsort(squares)[(len(squares) - 1) // 2]
    squares = squares.copy()
    row = products[central].copy()
    column = products[:, [central]].copy()
    seen = products  # in place: for many clients these are the largest thing there is
    seen -= row
    seen -= column
    seen += squares[central]
    same = np.diag(seen) <= COINCIDENCE_TOLERANCE * (squares + squares[central])
    seen[same] = seen[:, same] = 0.0
    lengths = np.sqrt(squares) + np.sqrt(squares[central])
    return CentralView(seen, np.ones(len(values)), lengths, resolution(values))


def resolution(values: Tensor) -> float:
    """Return the share of a length that rounding may lose.

    Rounding happens in the products.

    A sum of k products is off by at most `k eps / 2` of the product of both lengths. Here k is a block's width, the
    number of blocks, and what is added up over clients when places are computed from the products. The root of that is
    the share of a length; updates that count as the same are at most the root of `COINCIDENCE_TOLERANCE` apart.
    """
    blocks = list(column_blocks(values))
    additions = blocks[0].stop + len(blocks) + 4 * len(values) + 8
    return 2 * float(np.sqrt(additions * np.finfo(np.float64).eps + COINCIDENCE_TOLERANCE))


def central_products(values: Tensor, mixing: Array | None = None) -> Array:
    """Compute inner products of updates relative to a central one, (n, n).

    The product of a pair is `<u_i - u_c, u_j - u_c>`, where `u_c` is an update of median norm. With `mixing`, the pairs
    are those of the mixtures.
    """
    return central_view(values, mixing).products


def distances_from_products(products: Array) -> Array:
    """Turn `central_products` into `||u_i - u_j||^2` of all pairs, in place."""
    squares = np.diag(products).copy()
    blocks = [slice(first, first + TILE_ROWS) for first in range(0, len(products), TILE_ROWS)]
    for number, rows in enumerate(blocks):
        for columns in blocks[number:]:
            lengths = np.add.outer(squares[rows], squares[columns])
            here = products[rows, columns]
            there = products[columns, rows].T
            found = lengths - here - there
            mirrored = lengths - there - here
            products[columns, rows] = np.where(mirrored > COINCIDENCE_TOLERANCE * lengths, mirrored, 0.0).T
            products[rows, columns] = np.where(found > COINCIDENCE_TOLERANCE * lengths, found, 0.0)
    return products


def distance_rows(products: Array, squares: Array, rows: slice) -> Array:
    """Compute `||u_i - u_j||^2` of some i and all j.

    `products` are `central_products`, `squares` their diagonal.
    """
    lengths = np.add.outer(squares[rows], squares)
    found = lengths - products[rows]
    found -= products[:, rows].T
    lengths *= COINCIDENCE_TOLERANCE
    result: Array = np.where(found > lengths, found, 0.0)
    return result


def pairwise_distances(values: Tensor) -> Array:
    """Compute `||u_i - u_j||^2` of all pairs, (n, n).

    Nothing else is as large.
    """
    return distances_from_products(central_products(values))


def cosines(values: Tensor, rows: Tensor | None = None) -> Array:
    """Compute the cosine of the angle between all pairs, (n, n).

    The cosine with a zero update is 0. With `rows`, the pairs are those of these rows.
    """
    products = gram_matrix(values, rows=rows)
    if not np.isfinite(np.diag(products)).all():  # sums of finite updates may have overflowed
        largest = torch.stack([values[:, one].nan_to_num().abs().amax(dim=1) for one in column_blocks(values)]).amax(0)
        factors = 1 / (largest if rows is None else largest[rows]).double().clamp(min=1.0)
        products = gram_matrix(values, factors=factors, rows=rows)
    lengths = np.sqrt(np.diag(products))
    for some in row_blocks(products):
        scale = np.outer(lengths[some], lengths)
        angles = np.divide(products[some], scale, out=np.zeros_like(scale), where=scale > 0)
        np.clip(angles, -1.0, 1.0, out=products[some])
    return products


def cosines_with(values: Tensor, direction: Tensor) -> Array:
    """Compute the cosine between every update and one direction, (n,).

    It is 0 with a zero vector.
    """
    products = values.new_zeros(len(values), dtype=torch.float64)
    # Scaled to a largest entry of 1: no square overflows, nor vanishes.
    least, most = torch.aminmax(values, dim=1)
    largest = torch.maximum(most, -least).double().clamp(min=torch.finfo(torch.float64).tiny)
    peak = direction.abs().max().double().clamp(min=torch.finfo(torch.float64).tiny)
    squares = torch.zeros_like(products)
    for columns in column_blocks(values):
        block = values[:, columns].double() / largest[:, None]
        products += block @ (direction[columns].double() / peak)
        squares += block.square().sum(dim=1)
    lengths = squares.sqrt() * torch.linalg.vector_norm(direction.double() / peak)
    angles: Array = torch.where(lengths > 0, products / lengths, 0.0).clamp(-1.0, 1.0).cpu().numpy()
    return angles


def linear_combination(weights: Array, values: Tensor) -> Tensor:
    """Compute `sum_i weights[i] * values[i]` in the precision of the values."""
    chosen = np.flatnonzero(weights)
    if len(chosen) == 1:  # no need to read the others
        return float(weights[chosen[0]]) * values[int(chosen[0])]
    return torch.from_numpy(weights).to(values) @ values
