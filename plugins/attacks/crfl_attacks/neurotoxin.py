"""A backdoor in the coordinates that others leave alone."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from crfl_attacks.model_replacement import ModelReplacement
from crfl_core.extend import AttackerObservation, State


class Neurotoxin(ModelReplacement):
    """Durable backdoors (Zhang et al., 2022): attackers stay out of the coordinates that honest training moves most.

    After every round they look at how the broadcast model has changed. In the next one they set their gradients to
    zero in the share `ratio` of all coordinates that changed most, so that honest clients hardly undo what they did.
    Before they have seen a change, they train in all coordinates.
    """

    ratio: float = Field(0.1, gt=0, lt=1, description="share of the coordinates that attackers stay out of, top-k")

    def learn(self, seen: AttackerObservation, state: State) -> State:
        """1 for the coordinates that are left to them, 0 for those that changed most."""
        change = (seen.following - seen.round.start).abs()
        taken = change.topk(round(self.ratio * len(change))).indices
        return {**state, "left": torch.ones_like(change).index_fill_(0, taken, 0.0)}

    def local_gradient(self, gradient: Tensor, weights: Tensor, start: Tensor, state: State) -> Tensor:  # noqa: ARG002
        """The gradient, projected on what is left; weight decay is part of it."""
        return gradient * state["left"] if "left" in state else gradient
