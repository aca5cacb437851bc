"""Momentum of the server."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from crfl_core.extend import OptimiserResult, Round, ServerOptimiser, State


class Momentum(ServerOptimiser):
    """Federated averaging with momentum of the server, FedAvgM (Hsu et al., 2019).

    `v_t = beta v_(t-1) + aggregate_t` with `v_0 = 0`, and `w_t = w + eta v_t`. So an update of round s still moves the
    model in round t, with `eta beta^(t - s)` times its weight, and in the long run with `eta / (1 - beta)` times it.
    """

    learning_rate: float = Field(1.0, gt=0, description="eta of the server")
    beta: float = Field(0.9, ge=0, lt=1, description="what is left of the velocity of the round before")

    def step(self, aggregate: Tensor, current: Round, state: State) -> OptimiserResult:  # noqa: ARG002
        """The aggregate at the rate of the server, and what is left of earlier ones as the offset."""
        kept = self.beta * state["velocity"].to(aggregate) if state else aggregate.new_zeros(aggregate.shape)
        return OptimiserResult(self.learning_rate, self.learning_rate * kept, {"velocity": kept + aggregate})
