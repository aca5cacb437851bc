"""Effective weights p_i: how mixing matrices and offsets of stages compose, and the norms that caps are about.

A stage makes m rows of n updates: `values = mixing @ updates + offset`. A mixing is a matrix, (m, n), or a vector,
(n,), for a diagonal matrix, so that many clients need no square matrix. A rule then weighs the m rows. The functions
here turn that into weights of the n updates that clients submitted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crfl_core.training import aggregator_contract as contract

if TYPE_CHECKING:
    from crfl_core.records.round import RuleResult

NORM_PIECE = 512
"""Norms are taken of pieces this long in the precision of the updates, and put together in double precision."""


def compose_mixing(mixing: Tensor, before: Tensor | None) -> Tensor:
    """Return the mixing of all stages so far: `before`, then `mixing`."""
    if before is None:
        return mixing
    if mixing.ndim == before.ndim == 1:
        return mixing * before
    matrix = before.diag() if before.ndim == 1 else before
    return contract.mix(mixing.to(before), matrix, None)


def compose_offset(mixing: Tensor, before: Tensor | None, offset: Tensor | None) -> Tensor | None:
    """Return the offset of all stages so far.

    It is the offset `before`, mixed, plus the `offset` of this stage. Offsets are (m, P), or (P,) if they are the same
    for all rows.
    """
    if before is None:
        return offset
    if before.ndim == 1:  # row sums of the mixing say how much of it is left in each row
        sums = mixing if mixing.ndim == 1 else mixing.sum(1)
        mixed = before if bool((sums == 1).all()) else torch.outer(sums.to(before), before)
    else:
        mixed = contract.mix(mixing.to(before), before, None)
    return mixed if offset is None else mixed + offset


def weights_on_clients(weights: Tensor, mixing: Tensor | None) -> Tensor:
    """Return the weights of staged rows as weights of submitted updates."""
    if mixing is None:
        return weights
    if mixing.ndim == 1:
        return weights * mixing.to(weights)
    return weights @ mixing.to(weights)


def full_weights_on_clients(mixing: Tensor, full_weights: Tensor) -> Tensor:
    """Return weights of rows and parameters as weights of clients.

    They are (m, P) for the rows and (n, P) for the clients.
    """
    if mixing.ndim == 1:
        return mixing[:, None] * full_weights
    return mixing.T @ full_weights


def weigh_offset(weights: Tensor, offset: Tensor) -> Tensor:
    """Return `sum_j weights[j] offset[j]`, (P,)."""
    if offset.ndim == 1:
        return float(weights.sum()) * offset
    return weights.to(offset) @ offset


def offset_of_aggregate(answer: RuleResult, offset: Tensor) -> Tensor:
    """Return what the offset of staged rows adds to an aggregate, (P,)."""
    if answer.full_weights is not None:
        return (answer.full_weights() * offset).sum(0)
    return weigh_offset(answer.weights, offset)


def express_on_clients(answer: RuleResult, mixing: Tensor | None, *offsets: Tensor | None) -> RuleResult:
    """Return a rule's answer with weights on the submitted updates.

    `offsets` are what the stages added.
    """
    parts = [offset for offset in (answer.offset, *offsets) if offset is not None]
    if mixing is None and not parts:
        return answer
    total = sum(parts[1:], parts[0]) if parts else None
    weights = weights_on_clients(answer.weights, mixing)
    full = answer.full_weights
    if full is None or mixing is None:
        return replace(answer, weights=weights, offset=total)
    stage_mixing = mixing
    staged_weights = full
    return replace(
        answer,
        weights=weights,
        offset=total,
        full_weights=lambda: full_weights_on_clients(stage_mixing, staged_weights()),
    )


def row_norms(values: Tensor, start: Tensor | None = None, decay: Tensor | None = None) -> Tensor:
    """Return the norms of the rows of (..., n, P).

    The norms are float64 on the CPU. With `start` and `decay`, (n,), they are those of the residuals
    `values + decay start`.
    """
    if start is not None and decay is not None and bool(decay.any()):
        shares = decay.to(values)[:, None]
        centre = start.to(values)
        return torch.cat([row_norms(values[..., rows, :] + shares[rows] * centre) for rows in row_blocks(values)], -1)
    pieces, rest = divmod(values.shape[-1], NORM_PIECE)
    head, tail = values.split([pieces * NORM_PIECE, rest], dim=-1)
    lengths = torch.linalg.vector_norm(head.unflatten(-1, (pieces, NORM_PIECE)), dim=-1)
    last = torch.linalg.vector_norm(tail, dim=-1, keepdim=True)
    total: Tensor = torch.linalg.vector_norm(torch.cat([lengths, last], dim=-1).double(), dim=-1)
    return total.cpu()


def row_blocks(values: Tensor) -> list[slice]:
    """Return the rows of (..., n, P) in blocks.

    Each block is small enough for a copy.
    """
    *_, rows, size = values.shape
    at_once = max(1, contract.CHECKED_NUMBERS_AT_ONCE // max(1, size))
    return [slice(first, first + at_once) for first in range(0, rows, at_once)]


def cap_factors(cap: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `min(1, cap / length)`, rounded down.

    The factors are float64. No row ends up above its cap in the precision `dtype`.
    """
    factors = (cap / lengths) * (1 - 4 * torch.finfo(dtype).eps)
    normal = factors >= torch.finfo(dtype).tiny  # smaller ones would be rounded up as well as down
    return torch.where(lengths > cap, torch.where(normal, factors, 0.0), 1.0)
