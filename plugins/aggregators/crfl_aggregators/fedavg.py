"""Federated averaging."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from crfl_core.extend import Clients, LinearAggregator


class FedAvg(LinearAggregator):
    """Weighted mean of the updates (McMahan et al., 2017).

    `aggregate = sum_i p_i u_i` with `p_i = n_i / sum_j n_j`, or `1 / n`.
    """

    weighting: Literal["samples", "uniform"] = Field("samples", description="p_i by sample counts, or all equal")

    def weights(self, clients: Clients) -> Tensor:
        """Return p_i of the round's participants; they sum to 1."""
        samples = torch.from_numpy(clients.samples).double()
        counts = samples if self.weighting == "samples" else torch.ones_like(samples)
        return counts / counts.sum()
