"""The backdoor attack of the paper: poisoned batches and a scaled update."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from crfl_attacks.targeted import Targeted
from crfl_attacks.triggers import PixelTrigger, Trigger
from crfl_core.extend import Batches, FederatedData, State, Streams


class ModelReplacement(Targeted):
    """Backdoor by model replacement (Bagdasaryan et al., 2020; the paper's threat model).

    In every batch of an attacked round the first q_B samples get the trigger and the target label; the trained update
    is multiplied by `scale` before it is submitted.
    """

    trigger: Trigger = Field(PixelTrigger(), description="what is added to an input")
    backdoored_classes: Literal["others", "all"] = Field(
        "others",
        description="whose test inputs are in the backdoored test set: those of the other classes, or all, with those "
        "of the target; the success rate never counts these",
    )

    def prepare(self, data: FederatedData, streams: Streams) -> State:  # noqa: ARG002 - draws nothing
        """The pattern and the range that inputs are clamped to."""
        domain = data.test_x.new_tensor([data.facts.domain.low, data.facts.domain.high])
        return {"pattern": self.trigger.pattern(data.facts).to(data.test_x), "domain": domain}

    def poison(self, batches: Batches, state: State) -> Batches:
        """Trigger and target label on the first q_B samples of every batch."""
        most = int(self.counts(batches).max())
        return self.replaced(batches, stamped(batches.x[:, :, :most], self.local_patterns(batches, state), state))

    def local_patterns(self, batches: Batches, state: State) -> Tensor:  # noqa: ARG002 - the same for all
        """What each attacker adds in training; broadcast over (attackers, steps, batch, features)."""
        return state["pattern"]

    def add_trigger(self, x: Tensor, state: State) -> Tensor:
        """Inputs plus the pattern, clamped to the valid range."""
        return stamped(x, state["pattern"], state)

    def backdoor_test_set(self, data: FederatedData, state: State) -> tuple[Tensor, Tensor] | None:
        """Every test input of the chosen classes with the trigger, and its true label."""
        if self.backdoored_classes == "others":
            return super().backdoor_test_set(data, state)
        return self.add_trigger(data.test_x, state), data.test_y


def stamped(x: Tensor, pattern: Tensor, state: State) -> Tensor:
    """Inputs plus a pattern, clamped to the valid range."""
    low, high = state["domain"].tolist()
    return (x + pattern).clamp_(low, high)
