"""An attack for crfl."""

from __future__ import annotations

from dataclasses import replace

import torch
from crfl_core.extend import Attack, Batches, FederatedData, OptionError, State, Streams
from pydantic import Field


class MyPlugin(Attack):
    """Attackers label their samples of one class as another one.

    Nothing else changes: inputs stay as they are, and local training follows the protocol.
    """

    source: int = Field(1, ge=0, description="the class whose samples are relabelled")
    target: int = Field(0, ge=0, description="the class that they get")

    def prepare(self, data: FederatedData, streams: Streams) -> State:  # noqa: ARG002 - nothing is drawn
        """Return what `poison` receives as its state. Called once, before training."""
        for option in ("source", "target"):
            if getattr(self, option) >= data.facts.classes:
                found = getattr(self, option)
                raise OptionError(option, f"found {found}, but classes are 0..{data.facts.classes - 1}")
        return {}

    def poison(self, batches: Batches, state: State) -> Batches:  # noqa: ARG002 - remembers nothing
        """Poison the attackers' batches of a round, in new tensors where something changes."""
        return replace(batches, y=torch.where(batches.y == self.source, self.target, batches.y))
