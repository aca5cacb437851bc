"""Aggregators: stages that transform the updates of a round, and rules that combine them.

What a step is allowed to look at follows from its base class, and the core does the arithmetic wherever a certificate
rests on it: a `LinearAggregator` and a `FixedStage` never see an update, a `CapStage` only names norms.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import PluginError
from crfl_core.plugin_api.base import ServerStep
from crfl_core.plugin_api.plugin_errors import source_location
from crfl_core.records.round import (
    Clients,
    ClientUpdates,
    Dependence,
    Mixing,
    RoundFacts,
    RuleResult,
    StageResult,
    State,
    worst,
)

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core.plugin_api.server_view import ServerView


def state_key(position: int) -> str:
    """The name of a step's state among those of its chain, and in the checkpoint."""
    return f"aggregation.{position}"


class AggregationStep(ServerStep):
    """One entry of `[[aggregation]]`: a stage, or as the last entry a rule.

    `depends` says on what a client's weight depends: "fixed" on nothing submitted, "own" on its own update, which is
    projected on a ball, "all" on everybody's. It follows from the base class. Steps that look at the updates also see
    what the server has, `updates.round.server`; only those that say `needs_root` are handed its samples.
    """

    alternatives: ClassVar[str] = "FixedStage, CapStage or LinearAggregator"
    needs_root: ClassVar[bool] = False
    works_on: ClassVar[Literal["updates", "products", "blocks"]] = "updates"
    """What a step that looks at the updates of a round keeps of them: "updates" is about as much as there are; a step
    that reads them some columns at a time keeps the "products" of all pairs, (n, n), or nothing but a few "blocks".
    Then updates that do not fit into memory can lie in a file. It says how much memory a step needs, and nothing else.
    """

    @classmethod
    def check_dependence(cls) -> None:
        """As for every such plugin; and what must not depend on the updates sees nothing of the server either."""
        super().check_dependence()
        if cls.depends == "all":
            return
        prepared = inspect.getattr_static(cls, "prepare") is not vars(AggregationStep)["prepare"]
        if prepared or cls.needs_root:
            raise PluginError(
                f"{cls.__qualname__} ({source_location(cls)}) has `{'prepare' if prepared else 'needs_root'}`, but a "
                "step that must not depend on the updates sees nothing of the server: derive from Stage or Aggregator"
            )

    def prepare(self, server: ServerView) -> State:  # noqa: ARG002
        """What the step will find as its `state` in round 1. Called once, before training."""
        return {}

    def check(self, clients: Clients) -> None:
        """Raise `OptionError` if the options make no sense for rounds of clients like these. Called before training."""


class Stage(AggregationStep):
    """Transforms the updates before the rule sees them, and reports how as a mixing matrix."""

    def outputs(self, clients: int) -> int:
        """How many updates it hands on in a round with this number of clients. Later steps are checked against it."""
        return clients

    @abstractmethod
    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """The transformed updates. Inputs must not be changed or aliased."""


class FixedStage(Stage):
    """Mixes clients, or adds something, in a way that depends neither on the updates nor on the model."""

    depends: ClassVar[Dependence] = "fixed"

    @abstractmethod
    def mixing(self, facts: RoundFacts) -> Mixing:
        """What is done to the updates of this round; the core does it."""

    @final
    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """Never called: the core does what `mixing` says."""
        raise NotImplementedError


class CapStage(Stage):
    """Names the norm that no client's update may exceed; the core projects longer ones on the ball of that radius.

    `centre` "decay" caps the residual `u + (1 - retention) w`, which is the update itself without weight decay; "zero"
    always caps the update itself, which under weight decay promises nothing about honest clients.
    """

    depends: ClassVar[Dependence] = "own"
    centre: ClassVar[Literal["decay", "zero"]] = "decay"

    @abstractmethod
    def caps(self, clients: Clients) -> Tensor:
        """The largest norm of each participant, (n,), float64; infinite for none."""

    @final
    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """Never called: the core projects."""
        raise NotImplementedError


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
        """`sum_i p_i u_i`, as the core computes it."""
        weights = self.weights(updates.round.clients).to(updates.values.device)
        return RuleResult(update=weights.to(updates.values) @ updates.values, weights=weights, state=state)


def is_linear_chain(steps: Sequence[AggregationStep]) -> bool:
    """Whether no update is ever looked at beside another: caps come first, then fixed stages and a linear rule.

    Behind a stage that may mix clients, an "own" factor is a mixture's own: it depends on everybody in it.
    """
    kinds = [step.depends for step in steps]
    return "all" not in kinds and kinds == sorted(kinds, key=("own", "fixed").index)


def chain_dependence(steps: Sequence[AggregationStep], clients: Clients) -> Dependence:
    """On what the weights of a chain depend, for clients like these.

    A cap on whole updates counts as looking at everybody under weight decay, as honest updates may be shortened by it.
    """
    shortens = any(isinstance(one, CapStage) and not caps_residuals(one, clients) for one in steps)
    return "all" if shortens or not is_linear_chain(steps) else worst(*(step.depends for step in steps))


def caps_residuals(stage: CapStage, clients: Clients) -> bool:
    """Whether a stage caps what honest clients add to weight decay, so that it can leave all of that as it is."""
    return stage.centre == "decay" or not (clients.retention < 1).any()


def mix_clients(clients: Clients, mixing: Tensor) -> Clients:
    """Clients as the next step sees them: a stage that mixes clients makes new ones, averages of the old.

    Samples, retention and the bound on honest updates are averaged as the updates are, so that weights by sample counts
    and caps still mean the same. In everything else, and in its id, a row stays who it was if there are as many rows as
    before, and is the client that it is mostly made of if not.
    """
    import torch

    if mixing.ndim == 1:
        return clients
    if mixing.shape[0] == mixing.shape[1] and torch.equal(mixing, torch.diag(mixing.diagonal())):
        return clients
    share = mixing.abs().double().cpu().numpy()
    share /= np.maximum(share.sum(1, keepdims=True), np.finfo(np.float64).tiny)
    known = np.isfinite(clients.update_bound).all()
    averaged = {
        # Rounded twice: a half must not go up or down with the order in which it was summed.
        "samples": np.maximum(1, (share @ clients.samples).round(9).round()).astype(np.int64),
        "retention": share @ clients.retention,
        "update_bound": share @ clients.update_bound if known else np.full(len(share), np.inf),
    }
    if len(share) != len(clients):
        by_id = np.argsort(clients.ids)  # of equal parts the lowest id counts, in whatever order the rows come
        clients = clients.take(by_id[share[:, by_id].argmax(1)])
    return Clients(**(vars(clients) | averaged))
