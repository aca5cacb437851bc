"""Attackers that submit what they like, beside those of `crfl attack`, which poison data and push updates."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import PrivateAttr
from torch import Tensor

from crfl_core.extend import Attack, AttackerView, FederatedData, State, Streams
from crfl_core.training.steering import PoisonAim


class Submitting(Attack):
    """Attackers that submit what they like: a push of any size, their update reversed, or nothing that is a number."""

    how: Literal["push", "reverse", "not-finite", "pull"] = "push"
    size: float = 1e3

    _aim: PoisonAim | None = PrivateAttr(default=None)

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def aimed(self, aim: PoisonAim) -> Submitting:
        attack = self.model_copy()
        attack._aim = aim
        return attack

    def craft(self, known: AttackerView, state: State) -> Tensor:
        assert self._aim is not None
        own = known.own_updates
        if self.how == "not-finite":
            return torch.full_like(own, torch.nan)
        if self.how == "reverse":
            return -self.size * own
        if self.how == "pull":
            return -self.size * known.round.start.expand_as(own)
        return self.size * self._aim.direction.expand_as(own)
