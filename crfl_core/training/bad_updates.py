"""A chain that looks at all updates never sees bad ones, which are zero by now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.plugin_api.aggregator import AggregationStep, is_linear_chain
from crfl_core.records.round import ClientUpdates
from crfl_core.training.aggregation import ChainResult
from crfl_core.training.update_memory import new_rows


def hides(steps: Sequence[AggregationStep], bad: NDArray[np.bool_], *, drop: bool) -> bool:
    """Whether a chain is run without the bad updates: they are to be dropped, or it would look at them."""
    return bool(bad.any()) and not bad.all() and (drop or not is_linear_chain(steps))


def good_updates(updates: ClientUpdates, bad: NDArray[np.bool_]) -> ClientUpdates:
    """The others."""
    rows = np.flatnonzero(~bad)
    current = replace(updates.round, clients=updates.round.clients.take(rows))
    values = new_rows(updates.values, len(rows), updates.values.shape[1])
    torch.index_select(updates.values, 0, torch.from_numpy(rows).to(values.device), out=values)
    return ClientUpdates(values, current)


def spread_out(result: ChainResult, kept: NDArray[np.bool_]) -> ChainResult:
    """The result with a 0 for each participant that the chain did not see."""

    def spread(values: Tensor) -> Tensor:
        everybody = values.new_zeros(len(kept))
        everybody[torch.from_numpy(kept)] = values
        return everybody

    return replace(
        result,
        weights=spread(result.weights),
        weight_bound=spread(result.weight_bound),
        cap=spread(result.cap),
        residual=spread(result.residual),
    )
