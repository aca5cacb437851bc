"""An aggregation rule for crfl."""

from __future__ import annotations

import numpy as np
import torch
from crfl_core.extend import Clients, ClientUpdates, RuleResult, State, WeightedRule
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor


class MyPlugin(WeightedRule):
    """Mean in which an update that is longer than `bound` counts as zero.

    `aggregate = 1/n sum_i [||u_i|| <= bound] u_i`. A client that is left out keeps its share 1/n, so no other client
    gains weight.
    """

    bound: float = Field(1.0, gt=0, description="norm of the longest update that counts")

    def weigh(self, updates: ClientUpdates, state: State) -> Tensor:  # noqa: ARG002
        """Return the weight of each client in the mean, which the core forms."""
        lengths = torch.linalg.vector_norm(updates.values, dim=1)
        weights: Tensor = (lengths <= self.bound).double() / len(lengths)
        return weights

    def breakdown(self, clients: Clients, aggregate: RuleResult, update_bound: float) -> NDArray[np.float64]:  # noqa: ARG002
        """Return how far 0, 1, 2, ... arbitrary clients can move the mean; certificates rely on this.

        With and without the attack a client adds a vector of norm at most `bound / n`, and whether others count does
        not depend on it: each attacker moves the mean by at most twice that.
        """
        return 2.0 * self.bound / len(clients) * np.arange(len(clients) + 1.0)
