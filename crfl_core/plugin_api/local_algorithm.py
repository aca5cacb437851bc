"""Algorithms of local training: from the broadcast model to the update of a client.

What a certificate knows about an update follows from the base class. A `ProximalAlgorithm` names a number and the core
makes the steps; nothing is known about the updates of any other algorithm.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from crfl_core.plugin_api.base import Plugin
from crfl_core.records.round import State

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LocalStep:
    """Input of a local step of n clients, each on its R models: all tensors are (R, n, P).

    `number` is 1, 2, ... in every round. `gradient` is that of the batch, clipped if the config says so, with weight
    decay in it, `parameters` are the models now, and `start` the broadcast ones.
    """

    number: int
    gradient: Tensor
    parameters: Tensor
    start: Tensor


@dataclass(frozen=True)
class StepDirection:
    """Direction of a local step, (R, n, P): `w <- w - rate * values`. The next step of the round receives `state`."""

    values: Tensor
    state: State = field(default_factory=dict)


class LocalAlgorithm(Plugin):
    """Turns every gradient into a direction. Certificates assume nothing about the updates.

    Clients are independent: a direction depends neither on other clients nor on the other models of the client. Clients
    with fewer steps have a rate of 0 in the remaining ones; the core multiplies by the rates.
    """

    @abstractmethod
    def direction(self, step: LocalStep, state: State) -> StepDirection:
        """Return the direction of a step. `state` is empty in the first step of a round; do not change the models."""


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
