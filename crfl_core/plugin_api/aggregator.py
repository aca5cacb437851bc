"""Aggregators: stages that transform the updates of a round, and rules that combine them.

The base class decides what a step sees, and the core does the arithmetic wherever a certificate rests on it: a
`LinearAggregator` and a `FixedStage` never see an update, a `CapStage` only names norms.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import PluginError, PluginFailure
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
    Weighting,
    most_dependent,
)

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core.plugin_api.server_view import ServerView


def state_key(position: int) -> str:
    """Return the name of a step's state.

    The chain and the checkpoint use this name.
    """
    return f"aggregation.{position}"


class AggregationStep(ServerStep):
    """Entry of `[[aggregation]]`: a stage, or a rule as the last entry.

    `depends` says what a client's weight depends on: "fixed" on nothing submitted, "own" on the client's own update,
    which is projected on a ball, "all" on all updates. It follows from the base class. Steps that see the updates also
    see the server, `updates.round.server`, and with `needs_root = True` its trusted samples.

    >>> from crfl_core.extend import CapStage, LinearAggregator
    >>> CapStage.depends, LinearAggregator.depends
    ('own', 'fixed')
    """

    alternatives: ClassVar[str] = "FixedStage, CapStage or LinearAggregator"
    needs_root: ClassVar[bool] = False

    @classmethod
    def check_dependence(cls) -> None:
        """Also refuse a step that asks for the server.

        This is about steps that must not depend on the updates.
        """
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
        """Return the step's `state` of round 1. Called once, before training."""
        return {}

    def check(self, clients: Clients) -> None:
        """Raise `OptionError` if the options do not fit these clients.

        The clients are like those of the rounds. Called before training.
        """


class Stage(AggregationStep):
    """Transforms the updates before the rule sees them, and reports the mixing matrix."""

    def outputs(self, clients: int) -> int:
        """Return how many updates the stage passes on.

        Later steps are checked against this number.
        """
        return clients

    @abstractmethod
    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """Transform the updates. Inputs must not be changed or aliased."""


class FixedStage(Stage):
    """Mixes clients, or adds something, in a way that depends neither on the updates nor on the model."""

    depends: ClassVar[Dependence] = "fixed"

    @abstractmethod
    def mixing(self, facts: RoundFacts) -> Mixing:
        """Return the mixing matrix and offset of a round.

        The core applies them.
        """

    @final
    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """Raise: the core applies `mixing` instead."""
        raise NotImplementedError


class CapStage(Stage):
    """Names the largest norm of each client's update; the core projects longer ones on the ball of that radius.

    `centre` "decay" caps the residual `u + (1 - retention) w`, which is the update itself without weight decay; "zero"
    always caps the update itself, which under weight decay promises nothing about honest clients.
    """

    depends: ClassVar[Dependence] = "own"
    centre: ClassVar[Literal["decay", "zero"]] = "decay"

    @abstractmethod
    def caps(self, clients: Clients) -> Tensor:
        """Return the largest norm of each participant, (n,), float64.

        It is infinite for no cap.
        """

    @final
    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        """Raise: the core projects instead."""
        raise NotImplementedError


class Aggregator(AggregationStep):
    """Combines the updates of a round into one, and reports the weight p_i of each client.

    `signed_weights`: some may be negative, as those of a rule that turns coordinates around.
    """

    signed_weights: ClassVar[bool] = False

    @abstractmethod
    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """Combine the updates. Inputs must not be changed or aliased."""

    def breakdown(self, clients: Clients, aggregate: RuleResult, update_bound: float) -> NDArray[np.float64] | None:  # noqa: ARG002
        """Return how far 0, 1, 2, ... arbitrary clients move the aggregate.

        The aggregate is that of a round. None if nothing is known. No honest update (or residual, see `Clients`) is
        longer than `update_bound`. Entries are infinite from the number of clients at which the rule breaks down.
        """
        return None


class WeightedRule(Aggregator):
    """Rule that only weighs the updates: the core forms `sum_i p_i u_i` and reports the same p_i.

    Its weights may depend on all updates and differ from parameter to parameter. A rule that never looks at the updates
    is a `LinearAggregator`.
    """

    @abstractmethod
    def weigh(self, updates: ClientUpdates, state: State) -> Tensor | NDArray[np.float64] | Weighting:
        """Return the weight of each update, (n,).

        It may be the weight of each update and parameter, (n, P). With a new state or a note it is a `Weighting`; with
        the weights alone, the state stays as it is. Inputs must not be changed.
        """

    @final
    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """Return `sum_i p_i u_i`, in the precision of the updates."""
        import torch

        answer = self.weigh(updates, state)
        found = answer if isinstance(answer, Weighting) else Weighting(answer, state)
        weights = torch.as_tensor(found.weights)
        values = updates.values
        if weights.shape not in (values.shape[:1], values.shape) or weights.is_complex():
            raise PluginFailure(
                f"{self.full_name}: weigh() must return a weight for each of {len(values)} updates, or for each "
                f"parameter of each, found shape {tuple(weights.shape)}"
            )
        if weights.requires_grad:
            raise PluginFailure(f"{self.full_name}: weigh() returned weights with requires_grad: detach() them")
        if weights.ndim == 2:
            full = weights.to(values)
            largest = full.abs().amax(1).double()
            return RuleResult(
                (full * values).sum(0), largest, full_weights=lambda: full, state=found.state, notes=found.notes
            )
        weights = weights.double().to(values.device)
        return RuleResult(weighted_sum(weights, values), weights, state=found.state, notes=found.notes)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Return `sum_i weights[i] values[i]`.

    The sum has the precision of the values. A single update is not added to zeros.
    """
    chosen = weights.nonzero()[:, 0].tolist()
    if len(chosen) == 1:
        return float(weights[chosen[0]]) * values[chosen[0]]
    return weights.to(values) @ values


class LinearAggregator(Aggregator):
    """Rule whose weights cannot depend on the updates, because it does not see them."""

    depends: ClassVar[Dependence] = "fixed"

    @abstractmethod
    def weights(self, clients: Clients) -> Tensor:
        """Return the weight of each participant, (n,), float64."""

    @final
    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """Return `sum_i p_i u_i`, as the core computes it."""
        weights = self.weights(updates.round.clients).to(updates.values.device)
        return RuleResult(update=weights.to(updates.values) @ updates.values, weights=weights, state=state)


def is_linear_chain(steps: Sequence[AggregationStep]) -> bool:
    """Ask whether no step compares updates.

    Caps come first, then fixed stages and a linear rule. Behind a stage that mixes clients, an "own" factor belongs to
    a mixture and depends on all clients in it.
    """
    kinds = [step.depends for step in steps]
    return "all" not in kinds and kinds == sorted(kinds, key=("own", "fixed").index)


def chain_dependence(steps: Sequence[AggregationStep], clients: Clients) -> Dependence:
    """Return what the weights of a chain depend on, for these clients.

    Under weight decay a cap on whole updates counts as "all", because it may shorten honest updates.
    """
    shortens = any(isinstance(one, CapStage) and not caps_residuals(one, clients) for one in steps)
    return "all" if shortens or not is_linear_chain(steps) else most_dependent(*(step.depends for step in steps))


def caps_residuals(stage: CapStage, clients: Clients) -> bool:
    """Ask whether a cap bounds the residual beyond weight decay.

    Then it need not shorten honest updates.
    """
    return stage.centre == "decay" or not (clients.retention < 1).any()


def mix_clients(clients: Clients, mixing: Tensor) -> Clients:
    """Return the clients that the next step sees after a mixing.

    A stage has mixed their updates. Samples, retention and the bound on honest updates are averaged as the updates are,
    so that weights by sample counts and caps keep their meaning. Everything else, the id included, stays if the number
    of rows stays; otherwise it is that of the client with the largest share in the row.
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
