"""Backdoor by model replacement, the attack of the paper, and variants that change the attackers' training."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from crfl_attacks.targeted import TargetedPoisoning
from crfl_attacks.triggers import PixelTrigger, Trigger
from crfl_core.extend import AttackerObservation, Batches, FederatedData, State, Streams


class ModelReplacement(TargetedPoisoning):
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
        """Prepare the pattern and the range that inputs are clamped to."""
        domain = data.test_x.new_tensor([data.facts.domain.low, data.facts.domain.high])
        return {"pattern": self.trigger.pattern(data.facts).to(data.test_x), "domain": domain}

    def poison(self, batches: Batches, state: State) -> Batches:
        """Poison the first q_B samples of every batch.

        They get the trigger and the target label.
        """
        most = int(self.poisoned_counts(batches).max())
        return self.replace_samples(
            batches, add_pattern(batches.x[:, :, :most], self.local_patterns(batches, state), state)
        )

    def local_patterns(self, batches: Batches, state: State) -> Tensor:  # noqa: ARG002 - the same for all
        """Return the patterns that attackers add, broadcast over (attackers, steps, batch, features)."""
        return state["pattern"]

    def add_trigger(self, x: Tensor, state: State) -> Tensor:
        """Add the pattern to inputs, clamped to the valid range."""
        return add_pattern(x, state["pattern"], state)

    def backdoor_test_set(self, data: FederatedData, state: State) -> tuple[Tensor, Tensor] | None:
        """Return the triggered test inputs and their true labels.

        The inputs are those of the chosen classes.
        """
        if self.backdoored_classes == "others":
            return super().backdoor_test_set(data, state)
        return self.add_trigger(data.test_x, state), data.test_y


def add_pattern(x: Tensor, pattern: Tensor, state: State) -> Tensor:
    """Add a pattern to inputs, clamped to the valid range."""
    low, high = state["domain"].tolist()
    return (x + pattern).clamp_(low, high)


class ConstrainAndScale(ModelReplacement):
    """Model replacement that evades anomaly detection (Bagdasaryan et al., 2020).

    Attackers minimise `alpha L_class + (1 - alpha) L_ano` on their poisoned batches, where L_ano is the Euclidean
    distance to the model of the round, and multiply what they trained by `scale`.
    """

    alpha: float = Field(0.7, gt=0, le=1, description="weight of the task; the rest is the weight of staying close")

    def local_gradient(self, gradient: Tensor, weights: Tensor, start: Tensor, state: State) -> Tensor:  # noqa: ARG002
        """Add the pull toward the start to the gradient.

        The task has the weight `alpha`, the distance has the weight `1 - alpha`.
        """
        away = weights - start
        distance: Tensor = torch.linalg.vector_norm(away, dim=-1, keepdim=True)
        tiny = torch.finfo(away.dtype).tiny  # at the start itself 0 is a subgradient
        return (self.alpha * gradient).addcdiv_(away, distance.clamp(min=tiny), value=1.0 - self.alpha)


class Pgd(ModelReplacement):
    """Backdoor by projected gradient descent (Sun et al., 2019; Wang et al., 2020).

    After every local step attackers project their model on the ball of radius `radius` around the model of the round,
    so that a defence that bounds norms sees nothing unusual. `scale` multiplies the result, which leaves the ball.
    """

    radius: float = Field(1.0, gt=0, description="largest distance from the model of the round")

    def after_step(self, weights: Tensor, start: Tensor, state: State) -> Tensor:  # noqa: ARG002 - remembers nothing
        """Project the model on the ball."""
        away = weights - start
        distance: Tensor = torch.linalg.vector_norm(away, dim=-1, keepdim=True)
        return start + away / (distance / self.radius).clamp(min=1.0)


class Neurotoxin(ModelReplacement):
    """Durable backdoors (Zhang et al., 2022): attackers stay out of the coordinates that honest training moves most.

    After every round they look at how the broadcast model has changed. In the next one they set their gradients to
    zero in the share `ratio` of all coordinates that changed most, so that honest clients hardly undo what they did.
    Before they have seen a change, they train in all coordinates.
    """

    ratio: float = Field(0.1, gt=0, lt=1, description="share of the coordinates that attackers stay out of, top-k")

    def learn(self, seen: AttackerObservation, state: State) -> State:
        """Store 1 for the coordinates left to the attackers.

        The coordinates that changed most get 0.
        """
        change = (seen.following - seen.round.start).abs()
        taken = change.topk(round(self.ratio * len(change))).indices
        return {**state, "left": torch.ones_like(change).index_fill_(0, taken, 0.0)}

    def local_gradient(self, gradient: Tensor, weights: Tensor, start: Tensor, state: State) -> Tensor:  # noqa: ARG002
        """Project the gradient on the coordinates left.

        Weight decay is part of the gradient.
        """
        return gradient * state["left"] if "left" in state else gradient
