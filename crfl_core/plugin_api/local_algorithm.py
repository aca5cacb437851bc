"""Algorithms of local training: from the broadcast model to the update of a client.

What a certificate knows about an update follows from the base class. A `ProximalAlgorithm` names a number and the core
makes the steps; nothing is known about the updates of any other algorithm. A `StatefulAlgorithm` keeps vectors for each
client from round to round.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, final

from crfl_core.plugin_api.base import Plugin, refuse_hooks
from crfl_core.records.round import State

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LocalStep:
    """Input of a local step of n clients, each on its R models: all tensors are (R, n, P).

    `number` is 1, 2, ... in every round. `gradient` is that of the batch, clipped if the config says so, with weight
    decay in it, `parameters` are the models now, and `start` the broadcast ones. `ids` are the clients, (n,). `memory`
    is what a `StatefulAlgorithm` keeps of each of them, and `mean` its mean over all clients that train this model;
    both are empty for other algorithms.
    """

    number: int
    gradient: Tensor
    parameters: Tensor
    start: Tensor
    ids: tuple[int, ...] = ()
    memory: State = field(default_factory=dict)
    mean: State = field(default_factory=dict)


@dataclass(frozen=True)
class LocalRound:
    """Local training of n clients when it is over: tensors are (R, n, P), but `distance` is (n, 1).

    `distance` is the sum of a client's learning rates over its steps, 0 for one that made none. `start` are the
    broadcast models and `parameters` those that were trained; `memory` and `mean` are those of `LocalStep`.
    """

    start: Tensor
    parameters: Tensor
    distance: Tensor
    ids: tuple[int, ...]
    memory: State
    mean: State


@dataclass(frozen=True)
class StepDirection:
    """Direction of a local step, (R, n, P): `w <- w - rate * values`. The next step of the round receives `state`."""

    values: Tensor
    state: State = field(default_factory=dict)


class LocalAlgorithm(Plugin):
    """Turns every gradient into a direction. Certificates assume nothing about the updates.

    Clients are independent: a direction depends neither on other clients nor on the other models of the client. Clients
    with fewer steps have a rate of 0 in the remaining ones; the core multiplies by the rates. Every call of local
    training has an instance of its own, so what it keeps itself reaches neither other groups nor later rounds.
    """

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        refuse_hooks(cls, "a local algorithm, which must not depend on earlier rounds,")

    @abstractmethod
    def direction(self, step: LocalStep, state: State) -> StepDirection:
        """Return the direction of a step.

        `state` is empty in the first step of a round. Do not change the models.
        """


class StatefulAlgorithm(LocalAlgorithm):
    """Keeps vectors for every client, such as control variates: each as long as the model, zero before round 1.

    The core stores them, hands each client its own, writes them into checkpoints, and keeps those of groups and of
    continuations apart. Clients that do not take part in a round keep theirs, and so does one whose new memory is not
    finite. Certificates that need the noisy model to be all that leaves a round are refused.
    """

    remembers: ClassVar[tuple[str, ...]]
    """Names of the vectors that a client keeps."""

    @abstractmethod
    def remember(self, finished: LocalRound) -> State:
        """Return each of the vectors after a round, (R, n, P).

        They have the precision of the models.
        """


class ProximalAlgorithm(LocalAlgorithm):
    """SGD with a pull toward the broadcast model, `w <- w - rate (gradient + mu (w - start))`, made by the core.

    The core therefore knows the contraction of a round, and certificates use it:
    docs/certificates.md#a-pull-toward-the-start.
    """

    @abstractmethod
    def proximal_weight(self) -> float:
        """Return `mu`, finite and at least 0."""

    @final
    def direction(self, step: LocalStep, state: State) -> StepDirection:
        """Raise: the core makes the step instead."""
        raise NotImplementedError
