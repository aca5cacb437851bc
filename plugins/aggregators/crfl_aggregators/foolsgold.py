"""FoolsGold: less trust in clients that pull in the same direction."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from crfl_aggregators.geometry import COSINE_TOLERANCE, Array, cosines, row_blocks
from crfl_core.extend import ClientUpdates, State, WeightedRule, Weighting

MAX_TRUST = 0.99
"""The highest trust that enters the logit, which would be infinite at 1."""


class FoolsGold(WeightedRule):
    """Mean of the updates, each weighted by how little its client's history resembles another's (Fung et al., 2020).

    With `H_i` the sum of all updates of client i and `c_ij = cos(H_i, H_j)`, `v_i = max_j c_ij`: similarities to more
    conspicuous clients are pardoned, `c_ij <- c_ij v_i / v_j` where `v_j > v_i`; then `a_i = 1 - max_j c_ij`, rescaled
    to `max_i a_i = 1`, and `a_i <- confidence * (ln(a_i / (1 - a_i)) + 1/2)`, clipped to [0, 1]. `aggregate = sum_i
    (a_i / n) u_i`: the paper sums, and dividing by n makes it the mean if all clients are trusted. If all pull in one
    direction, no client is trusted: the update is zero. A history costs as much memory as a model.
    """

    confidence: float = Field(1.0, gt=0, description="kappa, the steepness of the logit")
    memory: bool = Field(True, description="compare sums of all updates so far; else those of this round only")

    def weigh(self, updates: ClientUpdates, state: State) -> Weighting:
        """Return weights that sum to at most 1, and the histories."""
        compared = updates.values
        rows = None
        if self.memory:
            rows, state = update_histories(state, torch.from_numpy(updates.round.clients.ids), updates.values)
            compared = state["history"]
        weights = client_trust(cosines(compared, rows), self.confidence) / len(updates.values)
        return Weighting(weights, state)


def client_trust(similarity: Array, confidence: float) -> Array:
    """Compute the paper's learning rates from the cosines of all pairs.

    The rates are in [0, 1]. The diagonal of `similarity` is overwritten.
    """
    np.fill_diagonal(similarity, 0.0)
    conspicuous = similarity.max(axis=1)
    likeness = [pardon(similarity[rows], conspicuous[rows], conspicuous) for rows in row_blocks(similarity)]
    trusted: Array = np.clip(1.0 - np.concatenate(likeness), 0.0, 1.0)
    if trusted.max() <= COSINE_TOLERANCE:
        return np.zeros_like(trusted)
    odds = np.minimum(trusted / trusted.max(), MAX_TRUST)
    logits = np.log(odds, out=np.full_like(odds, -np.inf), where=odds > 0) - np.log1p(-odds)
    clipped: Array = np.clip(confidence * (logits + 0.5), 0.0, 1.0)
    return clipped


def pardon(similarity: Array, own: Array, conspicuous: Array) -> Array:
    """Return each client's largest similarity to another, with pardon.

    Similarities to more conspicuous clients are pardoned.
    """
    own = own[:, None]
    ratio = np.divide(own, conspicuous, out=np.ones_like(similarity), where=conspicuous > own)
    largest: Array = (similarity * ratio).max(axis=1)
    return largest


def update_histories(state: State, ids: Tensor, values: Tensor) -> tuple[Tensor | None, State]:
    """Add this round to the histories of all clients.

    Returns the rows of this round's clients, or None if these are all clients, in this order; and the new state.
    """
    known = state.get("ids", ids.new_empty(0)).cpu()
    all_ids = torch.unique(torch.cat([known, ids]))
    history = values.new_zeros(len(all_ids), values.shape[1])
    if len(known):
        history[torch.searchsorted(all_ids, known)] = state["history"]
    rows = torch.searchsorted(all_ids, ids).to(values.device)
    history.index_add_(0, rows, values)
    return None if torch.equal(all_ids, ids) else rows, {"ids": all_ids, "history": history}
