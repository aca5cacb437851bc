"""Server optimisers: how the aggregate of a round becomes the next model, before it is clipped and gets its noise."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, final

from crfl_core.plugin_api.base import ServerStep
from crfl_core.records.round import Dependence, OptimiserResult, Round, RoundFacts, State

if TYPE_CHECKING:
    from torch import Tensor

STATE_KEY = "optimiser"
"""The name of its state among those of the aggregation, and in the checkpoint."""


class ServerOptimiser(ServerStep):
    """`server.optimiser`: changes the model by `scale * aggregate + offset`, which the core computes.

    One that looks at the aggregate depends on all updates, and if it keeps a state, on those of earlier rounds. The
    certificates that need a plain step are refused then; derive from `FixedRate` to keep them.
    """

    alternatives: ClassVar[str] = "FixedRate"

    @abstractmethod
    def step(self, aggregate: Tensor, current: Round, state: State) -> OptimiserResult:
        """What becomes of the aggregate of a round, (P,). `state` is what was returned in the round before, empty in
        the first one. Inputs must not be changed or aliased. Asked also about rounds that are not played, to measure
        for how long an update moves the model.
        """


class FixedRate(ServerOptimiser):
    """An optimiser that multiplies the aggregate by a number which depends neither on the updates nor on the model.

    The model becomes a mean of itself and of what plain aggregation would make of it, as long as the rate is in [0, 1]:
    all certificates hold, with every weight multiplied by the rate.
    """

    depends: ClassVar[Dependence] = "fixed"

    @abstractmethod
    def rate(self, facts: RoundFacts) -> float:
        """The rate of a round, finite and not negative."""

    @final
    def step(self, aggregate: Tensor, current: Round, state: State) -> OptimiserResult:
        """Never called: the core multiplies by the rate."""
        raise NotImplementedError
