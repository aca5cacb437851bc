"""Robust learning rate: coordinates in which too few clients agree move the other way."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from crfl_core.extend import Clients, ClientUpdates, OptionError, State, WeightedRule


class RobustLearningRate(WeightedRule):
    """Mean whose sign is turned in every coordinate in which too few clients agree, RLR (Ozdayi et al., 2021).

    `aggregate_j = s_j sum_i a_i u_ij` with `a_i = n_i / sum_k n_k`, or `1 / n`, and `s_j = 1` where
    `|sum_i sign(u_ij)|` is at least `threshold`, else `s_j = -1`. So weights are signed and differ from coordinate to
    coordinate: no sound certificate about weights holds. In an honest federation, too, coordinates move against the
    mean.
    """

    signed_weights: ClassVar[bool] = True

    threshold: int = Field(4, ge=0, description="theta: by how many votes a sign has to win; more than the attackers")
    weighting: Literal["samples", "uniform"] = Field("samples", description="a_i by sample counts, or all equal")

    def check(self, clients: Clients) -> None:
        """Raise `OptionError` if no vote of the clients could reach the threshold."""
        if self.threshold > len(clients):
            raise OptionError(
                "threshold",
                f"must be at most the number of clients, found {self.threshold} for {len(clients)} clients",
            )

    def weigh(self, updates: ClientUpdates, state: State) -> Tensor:  # noqa: ARG002
        """Return the weight of every client in every coordinate, (n, P)."""
        values = updates.values
        samples = updates.round.clients.samples.astype(np.float64)
        shares = samples / samples.sum() if self.weighting == "samples" else np.full(len(values), 1.0 / len(values))
        agreed = values.sign().sum(0).abs() >= self.threshold  # small integers, exact in any precision
        signs = torch.where(agreed, 1.0, -1.0).to(values)
        return torch.from_numpy(shares).to(values)[:, None] * signs
