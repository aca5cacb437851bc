"""Attacks that submit something else than what was trained: sign flip, noise, inner-product manipulation."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from crfl_core.extend import Attack, AttackerView, FederatedData, Knowledge, State, Streams


class Byzantine(Attack):
    """Attackers that want the model to fail; most know the honest updates of the round."""

    knowledge: ClassVar[Knowledge] = "updates"

    def prepare(self, data: FederatedData, streams: Streams) -> State:  # noqa: ARG002 - their data stay as they are
        """Prepare nothing: the attackers' data stay as they are."""
        return {}

    @abstractmethod
    def direction(self, known: AttackerView) -> Tensor:
        """Return what each attacker submits before scaling, broadcast over (attackers, P)."""

    def craft(self, known: AttackerView, state: State) -> Tensor:
        """Multiply the direction by the attackers' scale."""
        return super().craft(replace(known, own_updates=self.direction(known).expand_as(known.own_updates)), state)


class SignFlip(Byzantine):
    """Submits the trained update with the opposite sign, times `scale` (Li et al., 2019)."""

    knowledge: ClassVar[Knowledge] = "own"

    def direction(self, known: AttackerView) -> Tensor:
        """Return the opposite of the trained update."""
        return -known.own_updates


class Gaussian(Byzantine):
    """Submits independent Gaussian noise (Blanchard et al., 2017)."""

    knowledge: ClassVar[Knowledge] = "own"

    std: float = Field(1.0, gt=0, description="standard deviation in every parameter")

    def direction(self, known: AttackerView) -> Tensor:
        """Draw noise for every attacker and round."""
        generator = known.round.streams.generator("attack/gaussian", round_number=known.round.number)
        return self.std * torch.from_numpy(generator.standard_normal(tuple(known.own_updates.shape))).to(
            known.own_updates
        )


class InnerProductManipulation(Byzantine):
    """Fall of empires (Xie et al., 2019): all attackers submit -epsilon times the mean of the honest updates.

    A mean over all clients then has a negative inner product with the honest one as soon as epsilon exceeds the ratio
    of honest to malicious weight. A small epsilon is nearer to the honest updates than they are to each other.
    """

    epsilon: float = Field(0.5, gt=0, description="length in units of the honest mean")

    def direction(self, known: AttackerView) -> Tensor:
        """Return the direction against the honest mean.

        If all clients are attackers, the mean is that of their own updates.
        """
        values = known.honest.values if len(known.honest.values) else known.own_updates
        return -self.epsilon * values.mean(0)
