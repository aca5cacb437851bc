"""Majority vote of signs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from crfl_aggregators.geometry import Array, column_blocks
from crfl_core.extend import Aggregator, Clients, ClientUpdates, RuleResult, State


@dataclass(frozen=True)
class VoteResult(RuleResult):
    """Result of the vote, and its balance in each parameter: votes to raise minus votes to lower."""

    balance: Tensor = field(default_factory=lambda: torch.empty(0))


class SignMajority(Aggregator):
    """Every parameter moves by `step` in the direction that most clients vote for (Bernstein et al., 2019).

    `aggregate_j = step sign(sum_i sign(u_ij))`, as signSGD with majority vote has it: a client votes with the sign of
    its update and nothing else of it counts, a zero does not vote, and a tie moves nothing. So the aggregate is not
    a weighted sum of updates: all of it is an offset that depends on them, and all weights are zero. But R clients can
    turn only parameters whose votes differ by 2R or less, whatever they submit.
    """

    step: float = Field(0.01, gt=0, description="how far every parameter moves in a round")

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """Count the votes."""
        values = updates.values
        # Small integers, exact in any precision.
        balance = torch.cat([values[:, columns].sign().sum(0) for columns in column_blocks(values)])
        update = self.step * balance.sign()
        no_weights = torch.zeros(len(values), dtype=torch.float64, device=values.device)
        return VoteResult(update=update, weights=no_weights, offset=update.clone(), state=state, balance=balance)

    def breakdown(self, clients: Clients, aggregate: RuleResult, update_bound: float) -> Array | None:  # noqa: ARG002
        """Bound the norm of the change that R clients can cause.

        The bound uses the votes as they were counted; it is None if the aggregate has no votes. A vote changes a
        balance by at most 2, so in the other world it differs by at most 2R. Where the balance is above that, nothing
        changes; at exactly 2R, or at 0, a parameter may lose or win one step; below, it may turn around, two steps.
        """
        if not isinstance(aggregate, VoteResult):
            return None
        counts = np.bincount(aggregate.balance.abs().long().cpu().numpy(), minlength=2 * len(clients) + 1)
        upto = np.concatenate([[0.0], np.cumsum(counts[1:])])  # balances 1, ..., k
        drifts = [0.0]
        for attackers in range(1, len(clients) + 1):
            turned = 4.0 * upto[2 * attackers - 1] + counts[0] + counts[2 * attackers]
            drifts.append(self.step * float(np.sqrt(turned)))
        return np.array(drifts)
