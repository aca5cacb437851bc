"""What rules and filters that choose among clients have in common."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from crfl_aggregators.geometry import Array
from crfl_core.extend import ClientUpdates, StageResult, State

DIGITS = 12
"""Scores that agree in this number of digits are the same: the order in which a sum was taken must not decide."""


def ranking(scores: Array, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Clients along the last axis by ascending score, ties by id, so that the order of the rows does not matter."""
    digits, exponents = np.frexp(scores)
    rounded = np.ldexp(digits.round(DIGITS), exponents)
    return np.lexsort((np.broadcast_to(ids, scores.shape), rounded), axis=-1)


def selected(updates: ClientUpdates, rows: NDArray[np.int64], state: State) -> StageResult:
    """The updates in these rows; the mixing matrix has a 1 for each of them."""
    chosen = torch.from_numpy(rows).to(updates.values.device)
    mixing = updates.values.new_zeros(len(chosen), len(updates.values))
    mixing.scatter_(1, chosen[:, None], 1.0)
    return StageResult(values=updates.values[chosen], mixing=mixing, state=state)
