"""Attackers that are optimised against the certificates.

They know the model, the noise to come and the prediction that they want to change, and push the parameters straight
toward another class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from crfl_core.extend import Attack, AttackerView, Batches, FederatedData, State, Streams
from crfl_core.plugin_api.feature_map import FeatureMaps
from crfl_core.plugin_api.model import BoundModel

ASCENT_STEPS = 6


@dataclass(frozen=True)
class Knowledge:
    """What an attacker knows: how inputs become features, the model it starts from, and where to push it, all (P,)."""

    maps: FeatureMaps
    model: BoundModel
    parameters: Tensor
    direction: Tensor

    def gain(self, x: Tensor, labels: Tensor | None) -> Tensor:
        """How far one step on each sample pushes the model in the direction; with the best label if none is given."""
        features = self.maps(x)
        shape = features.shape[:-1]
        flat = features.reshape(-1, features.shape[-1])
        pushes = self.model.logits(self.direction[None], flat)[0].view(*shape, -1)
        chances = self.model.logits(self.parameters[None], flat)[0].softmax(-1).view(*shape, -1)
        best = pushes.argmax(-1) if labels is None else labels
        return pushes.gather(-1, best[..., None])[..., 0] - (pushes * chances).sum(-1)

    def best_labels(self, x: Tensor) -> Tensor:
        """The labels that push most."""
        features = self.maps(x)
        flat = features.reshape(-1, features.shape[-1])
        return self.model.logits(self.direction[None], flat)[0].argmax(-1).view(features.shape[:-1])

    def ascent(self, x: Tensor, labels: Tensor | None, delta: float) -> Tensor:
        """Inputs of the unit box within `delta` that push most, by projected gradient ascent."""
        moved = x.clone()
        for _ in range(ASCENT_STEPS):
            variable = moved.detach().requires_grad_(True)
            (slope,) = torch.autograd.grad(self.gain(variable, labels).sum(), variable)
            length = slope.norm(dim=-1, keepdim=True).clamp(min=1e-12)
            step = (variable.detach() + min(delta, 4.0) / 2 * slope / length).clamp(0.0, 1.0)
            away = step - x
            moved = x + away * (delta / away.norm(dim=-1, keepdim=True).clamp(min=delta)) * (1 - 1e-12)
        return moved


Kind = Literal["none", "features", "labels", "features+labels", "replacement"]


class Steering(Attack):
    """Poison that pushes the model toward a wrong prediction: in the worst samples of every batch, or `count` samples
    per epoch that fall into the batches where they weigh most.
    """

    kind: Kind = "features+labels"
    ratio: float = Field(0.5, ge=0, le=1)
    delta: float = Field(1.0, gt=0)
    count: int | None = None
    last_steps_only: bool = False

    _knowledge: Knowledge | None = PrivateAttr(default=None)

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def informed(self, knowledge: Knowledge) -> Steering:
        attack = self.model_copy()
        attack._knowledge = knowledge
        return attack

    def poison(self, batches: Batches, state: State) -> Batches:
        if self.kind == "none" or self._knowledge is None:
            return batches
        flips = self.kind != "features"
        labels = None if flips else batches.y
        x = batches.x
        if self.kind != "labels":
            x = self._knowledge.ascent(x, labels, 100.0 if self.kind == "replacement" else self.delta)
        y = self._knowledge.best_labels(x) if flips else batches.y
        with torch.no_grad():
            gain = self._knowledge.gain(x, y) - self._knowledge.gain(batches.x, batches.y)
        chosen = self._chosen(gain, batches.sizes)
        return replace(batches, x=torch.where(chosen[..., None], x, batches.x), y=torch.where(chosen, y, batches.y))

    def _chosen(self, gain: Tensor, sizes: Tensor) -> Tensor:
        """The samples to poison, (clients, steps, batch): those with most gain."""
        real = torch.arange(gain.shape[2]) < sizes[..., None]
        rank = gain.masked_fill(~real, -torch.inf).argsort(-1, descending=True).argsort(-1)
        return real & (rank < self._quota(sizes)[..., None])

    def _quota(self, sizes: Tensor) -> Tensor:
        """How many samples to poison in every batch."""
        if self.count is None:
            quota = (sizes.double() * self.ratio + 1e-9).floor()
            if self.last_steps_only:
                quota[:, :-1] = 0
            return quota
        quota = torch.zeros_like(sizes)
        for client, steps in enumerate(sizes.tolist()):
            largest = max(steps)
            ends = [step + 1 for step, size in enumerate(steps) if size < largest] or [len(steps)]
            for first, last in zip([0, *ends], [*ends, len(steps)], strict=False):
                left = self.count
                # late steps suffer least from weight decay, short batches weigh their samples most
                for step in sorted(range(first, last), key=lambda s: (steps[s], -s)):
                    quota[client, step] = min(left, steps[step])
                    left -= int(quota[client, step])
        return quota


class Submitting(Attack):
    """Attackers that submit what they like: a push of any size, their update reversed, or nothing that is a number."""

    how: Literal["push", "reverse", "not-finite", "pull"] = "push"
    size: float = 1e3

    _knowledge: Knowledge | None = PrivateAttr(default=None)

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def informed(self, knowledge: Knowledge) -> Submitting:
        attack = self.model_copy()
        attack._knowledge = knowledge
        return attack

    def craft(self, known: AttackerView, state: State) -> Tensor:
        assert self._knowledge is not None
        own = known.own_updates
        if self.how == "not-finite":
            return torch.full_like(own, torch.nan)
        if self.how == "reverse":
            return -self.size * own
        if self.how == "pull":
            return -self.size * known.round.start.expand_as(own)
        return self.size * self._knowledge.direction.expand_as(own)
