"""What all attacks share that submit something other than what they trained."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from crfl_core.extend import Attack, AttackerView, FederatedData, Knowledge, State, Streams


class Byzantine(Attack):
    """Attackers that want the model to fail; most know what the honest participants of the round submit."""

    knowledge: ClassVar[Knowledge] = "updates"

    def prepare(self, data: FederatedData, streams: Streams) -> State:  # noqa: ARG002 - their data stay as they are
        """Nothing."""
        return {}

    @abstractmethod
    def direction(self, known: AttackerView) -> Tensor:
        """What each attacker submits before scaling, broadcast over (attackers, P)."""

    def craft(self, known: AttackerView, state: State) -> Tensor:
        """The direction times the attackers' scale."""
        return super().craft(replace(known, own_updates=self.direction(known).expand_as(known.own_updates)), state)
