"""What filters have in common: some updates go on, unchanged."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from crfl_core import ClientUpdates, Staged, State


def selected(updates: ClientUpdates, rows: NDArray[np.int64], state: State) -> Staged:
    """The updates in these rows; the mixing matrix has a 1 for each of them."""
    chosen = torch.from_numpy(rows).to(updates.values.device)
    everybody = torch.eye(len(updates.values), dtype=updates.values.dtype, device=updates.values.device)
    return Staged(values=updates.values[chosen], mixing=everybody[chosen], state=state)
