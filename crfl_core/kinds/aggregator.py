"""Aggregators: stages that transform the updates of a round, and rules that combine them."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, final

from crfl_core.kinds.plugin import Plugin
from crfl_core.updates import Aggregate, Clients, ClientUpdates, Dependence, Staged, State

if TYPE_CHECKING:
    from torch import Tensor


class AggregationStep(Plugin):
    """One entry of `[[aggregation]]`: a `Stage`, or as the last entry an `Aggregator`.

    `depends` says on what its weights depend: "fixed" on nothing submitted, "own" each client's factor on its own
    update only (caps, norm bounds), "all" on everybody's. A rule is "fixed" if and only if it is a `LinearAggregator`.
    """

    depends: ClassVar[Dependence] = "all"

    def check(self, clients: Clients) -> None:
        """Raise `OptionError` if the options make no sense for rounds of clients like these. Called before training."""


class Stage(AggregationStep):
    """Transforms the updates before the rule sees them, and reports how as a mixing matrix."""

    @abstractmethod
    def transform(self, updates: ClientUpdates, state: State) -> Staged:
        """The transformed updates. Inputs must not be changed or aliased."""


class Aggregator(AggregationStep):
    """Combines the updates of a round into one, and reports the weight p_i with which each client entered."""

    @abstractmethod
    def aggregate(self, updates: ClientUpdates, state: State) -> Aggregate:
        """The combined update. Inputs must not be changed or aliased."""


class LinearAggregator(Aggregator):
    """A rule whose weights cannot depend on the updates, because it does not see them."""

    depends: ClassVar[Dependence] = "fixed"

    @abstractmethod
    def weights(self, clients: Clients) -> Tensor:
        """The weight of each participant, (n,), float64."""

    @final
    def aggregate(self, updates: ClientUpdates, state: State) -> Aggregate:
        """`sum_i p_i u_i` with the fixed weights."""
        weights = self.weights(updates.round.clients).to(updates.values)
        return Aggregate(update=weights @ updates.values, weights=weights, state=state)
