"""The backdoor attack of the paper: poisoned batches and a scaled update."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field
from torch import Tensor

from crfl_attacks.triggers import PixelTrigger, Trigger
from crfl_core import Attack, Batches, FederatedData, OptionError, State, Streams


class ModelReplacement(Attack):
    """Backdoor by model replacement (Bagdasaryan et al., 2020; the paper's threat model).

    In every batch of an attacked round the first q_B samples get the trigger and the target label; the trained update
    is multiplied by `scale` before it is submitted.
    """

    poisoned_per_batch: int = Field(5, ge=1, description="poisoned samples in each batch, q_B")
    target: int = Field(0, ge=0, description="the class that triggered inputs should get")
    trigger: Trigger = Field(PixelTrigger(), description="what is added to an input")

    @property
    def backdoor_class(self) -> int:
        """The target label."""
        return self.target

    def check(self, batch_size: int) -> None:
        """No more poisoned samples than a batch has."""
        if self.poisoned_per_batch > batch_size:
            raise OptionError(
                "poisoned_per_batch",
                f"found {self.poisoned_per_batch}, but an attacker's batch has {batch_size} samples",
            )

    def prepare(self, data: FederatedData, streams: Streams) -> State:  # noqa: ARG002 - draws nothing
        """The pattern and the range that inputs are clamped to."""
        domain = data.x.new_tensor([data.facts.domain.low, data.facts.domain.high])
        return {"pattern": self.trigger.pattern(data.facts).to(data.x), "domain": domain}

    def poison(self, batches: Batches, prepared: State) -> Batches:
        """Trigger and target label on the first q_B samples of every batch."""
        x, y = batches.x.clone(), batches.y.clone()
        first = slice(0, self.poisoned_per_batch)
        x[:, :, first] = self.backdoored(x[:, :, first], prepared)
        y[:, :, first] = self.target
        return replace(batches, x=x, y=y)

    def backdoored(self, x: Tensor, prepared: State) -> Tensor:
        """Inputs plus the pattern, clamped to the valid range."""
        low, high = prepared["domain"].tolist()
        return (x + prepared["pattern"]).clamp(low, high)
