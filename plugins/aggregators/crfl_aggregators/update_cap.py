"""Update cap: nobody may submit more than honest training can produce."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from crfl_aggregators.geometry import norms, shrinkage
from crfl_core.extend import Clients, ClientUpdates, Dependence, OptionError, Stage, StageResult, State


class UpdateCap(Stage):
    """Shrinks every update to what honest training can reach at most, so that no honest update is changed.

    Weight decay pulls an honest update toward `-(1 - c_i) w` for the broadcast model `w`; the rest, `r_i = u_i + (1 -
    c_i) w`, has at most the norm `U_i = eta_i tau_i sqrt(2) B` for softmax regression on inputs of norm B (with weight
    decay lambda, `sqrt(2) B (1 - c_i) / lambda`). The rest is capped: `u_i <- k_i u_i - (1 - k_i) (1 - c_i) w` with
    `k_i = min(1, bound / ||r_i||)`. Every attacker then costs at most twice the bound, whatever it does.
    """

    depends: ClassVar[Dependence] = "own"
    bound: Annotated[float, Field(gt=0)] | Literal["honest", "known"] = Field(
        "honest",
        description="largest norm without weight decay; 'honest' is U_i, from the declared domain of the data; 'known' "
        "is the same where there is such a bound, and no cap where there is none",
    )

    def check(self, clients: Clients) -> None:
        """`honest` needs a bound on gradients, which only some models and domains have."""
        if self.bound == "honest" and not np.isfinite(clients.update_bound).all():
            raise OptionError(
                "bound",
                "'honest' needs a bound on honest updates, which only softmax regression on inputs of bounded norm "
                "has: give a number, or use model.type = 'softmax' with model.features = { type = 'unit-ball' }",
            )

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """Capped copies; the offset is what weight decay contributes to updates that were shrunk."""
        values, start, clients = updates.values, updates.round.start, updates.round.clients
        bounds = np.full(len(clients), self.bound) if isinstance(self.bound, float) else clients.update_bound
        cap = torch.from_numpy(bounds).to(values.device)
        decay = torch.from_numpy(1.0 - clients.retention).to(values)
        lengths = norms(values, start, decay) if bool(decay.any()) else norms(values)
        factors = shrinkage(cap, lengths, values)
        capped = factors[:, None] * values
        pull = (factors - 1.0) * decay
        offset = torch.outer(pull, start.to(values)) if bool(pull.any()) else None
        return StageResult(
            values=capped if offset is None else capped.add_(offset),
            mixing=factors,
            cap=cap,
            offset=offset,
            state=state,
        )
