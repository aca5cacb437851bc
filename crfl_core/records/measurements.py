"""Precision of the measurements of a ledger: each counts as the largest value that it may have had."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from crfl_core.records.ledger import Ledger, RunFacts

Array = NDArray[np.float64]
FURTHER = 8
"""Operations around a sum: differences, squares, roots, quotients."""


def precision(facts: RunFacts) -> float:
    """Return the machine epsilon of a run's arithmetic.

    It is the distance from 1 to the next number.
    """
    return float(np.finfo(facts.dtype).eps)


def relative_error(terms: int, dtype: str) -> float:
    """Return the relative error of a sum or of a norm.

    It is `n u / (1 - n u)`, for a sum of n products or the norm of n numbers.
    """
    error = (terms + FURTHER) * float(np.finfo(dtype).eps) / 2.0
    return error / (1.0 - error) if error < 1.0 else math.inf


def norm_error(facts: RunFacts) -> float:
    """Return the relative error of an input's norm.

    It also holds for a change of an input, before or behind the maps.
    """
    return relative_error(max(facts.inputs, facts.features), facts.dtype)


def share_error(ledger: Ledger) -> float:
    """Return the error that a poisoned share per step may have.

    It is a sum over two sizes of batches, divided by steps that weight decay may have made a quotient. In older ledgers
    it is a sum over all steps in single precision.
    """
    if ledger.facts.exact_shares:
        return relative_error(8, "float64")
    return relative_error(int(ledger.clients.steps.max(initial=1)), "float32")


def scale_error(facts: RunFacts) -> float:
    """Return the relative error of the quotient of two update norms."""
    return 2.0 * relative_error(facts.parameters, facts.dtype)


def observed_residuals(ledger: Ledger) -> Array:
    """Return the norms of the residuals in the aggregates.

    They are those behind the cap. Each is at least its true value.
    """
    facts = ledger.facts
    rows = ledger.clients
    starts = np.array([record.start_norm for record in ledger.rounds])[rows.round - 1]
    centring = 2.0 * precision(facts) * (1.0 - rows.retention) * starts
    norms: Array = rows.residual_norm * (1.0 + relative_error(facts.parameters, facts.dtype)) + centring
    return np.minimum(rows.cap, norms)
