"""Server optimisers: from the aggregate of a round to the next model, before clipping and noise."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, final

from crfl_core.plugin_api.base import ServerStep
from crfl_core.records.round import Dependence, OptimiserResult, Round, RoundFacts, State

if TYPE_CHECKING:
    from torch import Tensor

STATE_KEY = "optimiser"
"""Name of the optimiser's state, among those of the aggregation and in the checkpoint."""


class ServerOptimiser(ServerStep):
    """Value of `server.optimiser`: changes the model by `scale * aggregate + offset`, which the core computes.

    An optimiser that sees the aggregate depends on all updates, and with a state on those of earlier rounds.
    Certificates that need a plain step are then refused; derive from `FixedRate` to keep them.
    """

    alternatives: ClassVar[str] = "FixedRate"

    @abstractmethod
    def step(self, aggregate: Tensor, current: Round, state: State) -> OptimiserResult:
        """Return scale and offset for an aggregate, (P,), and the next state.

        `state` is what the round before returned, empty in the first round. Inputs must not be changed or aliased. The
        core also calls this for rounds that are not played, to measure for how long an update moves the model.
        """


class FixedRate(ServerOptimiser):
    """Optimiser that multiplies the aggregate by a number independent of the updates and the model.

    With a rate in [0, 1] the next model is a mean of the model and the plainly aggregated one: all certificates hold,
    with every weight multiplied by the rate.
    """

    depends: ClassVar[Dependence] = "fixed"

    @abstractmethod
    def rate(self, facts: RoundFacts) -> float:
        """Return the rate of a round, finite and not negative."""

    @final
    def step(self, aggregate: Tensor, current: Round, state: State) -> OptimiserResult:
        """Raise: the core multiplies by the rate instead."""
        raise NotImplementedError
