"""Algorithms: how clients train between one broadcast model and their update.

What a certificate can say about an update follows from the base class: a `ProximalAlgorithm` names a number and the
core makes the steps, of any other nothing is known.
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
    """A local step that n clients are about to make, each on its R models: all tensors are (R, n, P).

    `number` is 1, 2, ... in every round. `gradient` is that of the batch, clipped if the config says so, with weight
    decay in it, `parameters` are the models now, and `start` the broadcast ones.
    """

    number: int
    gradient: Tensor
    parameters: Tensor
    start: Tensor


@dataclass(frozen=True)
class StepDirection:
    """Where clients go, (R, n, P): `w <- w - rate * values`. `state` is what the next step of the round is handed."""

    values: Tensor
    state: State = field(default_factory=dict)


class LocalAlgorithm(Plugin):
    """Makes a direction of every gradient. Nothing is assumed about the updates that come of it.

    Clients are independent: what one does depends neither on the others nor on its other models. Those that make fewer
    steps than others have a rate of 0 in the rest; the core multiplies by the rates.
    """

    @abstractmethod
    def direction(self, step: LocalStep, state: State) -> StepDirection:
        """Where to go. `state` is empty in the first step of a round; models must not be changed."""


class ProximalAlgorithm(LocalAlgorithm):
    """SGD with a pull toward the broadcast model, `w <- w - rate (gradient + mu (w - start))`, made by the core.

    So it knows what a round contracts by, and certificates can use it: docs/certificates.md#a-pull-toward-the-start.
    """

    @abstractmethod
    def proximal_weight(self) -> float:
        """`mu`, finite and at least 0."""

    @final
    def direction(self, step: LocalStep, state: State) -> StepDirection:
        """Never called: the core makes the step."""
        raise NotImplementedError
