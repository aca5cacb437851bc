"""Aggregators: stages that transform the updates of a round, and rules that combine them."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from crfl_core.kinds.plugin import Plugin
from crfl_core.updates import Clients, ClientUpdates, Dependence, RuleResult, StageResult, State

if TYPE_CHECKING:
    from torch import Tensor


def state_key(position: int) -> str:
    """The name of a step's state among those of its chain, and in the checkpoint."""
    return f"aggregation.{position}"


class AggregationStep(Plugin):
    """One entry of `[[aggregation]]`: a `Stage`, or as the last entry an `Aggregator`.

    `depends` says on what its weights depend: "fixed" on nothing submitted, "own" each client's factor on its own
    update only, which is projected on a ball (caps, norm bounds), "all" on everybody's. A rule is "fixed" if and only
    if it is a `LinearAggregator`.
    """

    depends: ClassVar[Dependence] = "all"

    def check(self, clients: Clients) -> None:
        """Raise `OptionError` if the options make no sense for rounds of clients like these. Called before training."""


class Stage(AggregationStep):
    """Transforms the updates before the rule sees them, and reports how as a mixing matrix."""

    def outputs(self, clients: int) -> int:
        """How many updates it hands on in a round of so many clients. Later steps are checked against this."""
        return clients

    @abstractmethod
    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """The transformed updates. Inputs must not be changed or aliased."""


class Aggregator(AggregationStep):
    """Combines the updates of a round into one, and reports the weight p_i with which each client entered."""

    @abstractmethod
    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """The combined update. Inputs must not be changed or aliased."""

    def breakdown(self, clients: Clients, aggregate: RuleResult, update_bound: float) -> NDArray[np.float64] | None:  # noqa: ARG002
        """How far 0, 1, 2, ... arbitrary clients can move the aggregate of a round, if no honest update (or residual,
        see `Clients`) is longer than `update_bound`; infinite from where the rule breaks down. None: nothing is known.
        """
        return None


class LinearAggregator(Aggregator):
    """A rule whose weights cannot depend on the updates, because it does not see them."""

    depends: ClassVar[Dependence] = "fixed"

    @abstractmethod
    def weights(self, clients: Clients) -> Tensor:
        """The weight of each participant, (n,), float64."""

    @final
    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """`sum_i p_i u_i` with the fixed weights."""
        weights = self.weights(updates.round.clients).to(updates.values.device)
        return RuleResult(update=weights.to(updates.values) @ updates.values, weights=weights, state=state)
