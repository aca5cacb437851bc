"""Stages that bound the norm of every update: a given bound, or the most that honest training can reach."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from crfl_core.extend import CapStage, Clients, OptionError


class NormBound(CapStage):
    """Shrinks every update to at most a given norm (Sun et al., 2019).

    `u_i <- u_i min(1, bound / ||u_i||)`. With weight decay an honest update also grows with the model, so the bound
    promises nothing about what remains without the decay, and certificates that need a cap are refused: use
    `update-cap`.
    """

    centre: ClassVar[Literal["decay", "zero"]] = "zero"

    bound: float = Field(1.0, gt=0, description="largest norm of an update, M")

    def caps(self, clients: Clients) -> Tensor:
        """Return the same bound for all clients."""
        return torch.full((len(clients),), self.bound, dtype=torch.float64)


class UpdateCap(CapStage):
    """Shrinks every update to what honest training can reach at most, so that no honest update is changed.

    Weight decay pulls an honest update toward `-(1 - c_i) w` for the broadcast model `w`; the rest, `r_i = u_i + (1 -
    c_i) w`, has at most the norm `U_i = eta_i tau_i sqrt(2) B` for softmax regression on inputs of norm B (with weight
    decay lambda, `sqrt(2) B (1 - c_i) / lambda`). The rest is capped: `u_i <- k_i u_i - (1 - k_i) (1 - c_i) w` with
    `k_i = min(1, bound / ||r_i||)`. Every attacker then costs at most twice the bound, whatever it does.
    """

    bound: Annotated[float, Field(gt=0)] | Literal["honest", "known"] = Field(
        "honest",
        description="largest norm without weight decay; 'honest' is U_i, from the declared domain of the data; 'known' "
        "is the same where there is such a bound, and no cap where there is none",
    )

    def check(self, clients: Clients) -> None:
        """Raise `OptionError` if `honest` has no bound on gradients to rest on.

        Only some models and domains have one.
        """
        if self.bound == "honest" and not np.isfinite(clients.update_bound).all():
            raise OptionError(
                "bound",
                "'honest' needs a bound on honest updates, which only softmax regression on inputs of bounded norm "
                "has: give a number, or use model.type = 'softmax' with model.features = { type = 'unit-ball' }",
            )

    def caps(self, clients: Clients) -> Tensor:
        """Return the bound of each client."""
        bounds = np.full(len(clients), self.bound) if isinstance(self.bound, float) else clients.update_bound
        return torch.from_numpy(bounds)
