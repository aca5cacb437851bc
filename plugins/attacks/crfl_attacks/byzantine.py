"""What all attacks share that submit something other than what they trained."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from crfl_core.extend import Attack, ClientUpdates, FederatedData, State, Streams


class Byzantine(Attack):
    """Attackers that know what the honest participants of the round submit, and want the model to fail."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:  # noqa: ARG002 - their data stay as they are
        """Nothing."""
        return {}

    @abstractmethod
    def direction(self, honest: ClientUpdates, own: Tensor) -> Tensor:
        """What each attacker submits before scaling, broadcast over (attackers, P), given their trained updates."""

    def craft(self, honest: ClientUpdates, own: Tensor, weights: Tensor) -> Tensor:
        """The direction times the attackers' scale."""
        return super().craft(honest, self.direction(honest, own).expand_as(own), weights)
