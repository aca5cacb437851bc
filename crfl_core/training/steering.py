"""Attackers that know what they want to change: they steer the model toward other classes on chosen test inputs.

`Steering` poisons data within a share of each batch and a distance, `Pushing` submits updates as long as the server
lets through. Both are told their aim before a replay, so they cannot be named in a config.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr
from torch import Tensor

from crfl_core.plugin_api.attack import Attack
from crfl_core.plugin_api.feature_map import FeatureMaps
from crfl_core.plugin_api.model import BoundModel
from crfl_core.records.attacker_view import AttackerObservation, AttackerView, Knowledge
from crfl_core.records.inputs import Batches, Domain, FederatedData
from crfl_core.records.random_streams import Streams
from crfl_core.records.round import State

ASCENT_STEPS = 6
ROUNDING_MARGIN = 1e-12
"""By how much, relatively, moved inputs stay nearer than allowed."""
LENGTH_MARGIN = 1e-5
"""By how much, relatively, updates stay below the cap, so that rounding does not carry them beyond it."""
AIMED_AT_ONCE = 32
"""Predictions that one direction is made of."""
PUSHES = (0.5, 1.0, 2.0, 4.0, 16.0, 64.0)
"""Lengths that attackers try who know the rule, in distances of honest updates from their mean."""


@dataclass(frozen=True)
class PoisonAim:
    """Aim of poisoned data: how inputs become features, the model to start from, and where to push it, all (P,)."""

    maps: FeatureMaps
    model: BoundModel
    parameters: Tensor
    direction: Tensor
    domain: Domain

    def gain(self, x: Tensor, labels: Tensor | None, parameters: Tensor) -> Tensor:
        """Return how far one step on each sample pushes the model.

        It takes the best label if none is given.
        """
        features = self.maps(x)
        shape = features.shape[:-1]
        flat = features.reshape(-1, features.shape[-1])
        pushes = self.model.logits(self.direction[None], flat)[0].view(*shape, -1)
        chances = self.model.logits(parameters[None], flat)[0].softmax(-1).view(*shape, -1)
        best = pushes.argmax(-1) if labels is None else labels
        return pushes.gather(-1, best[..., None])[..., 0] - (pushes * chances).sum(-1)

    def best_labels(self, x: Tensor) -> Tensor:
        """Return the labels that push most."""
        features = self.maps(x)
        flat = features.reshape(-1, features.shape[-1])
        return self.model.logits(self.direction[None], flat)[0].argmax(-1).view(features.shape[:-1])

    def ascend(self, x: Tensor, labels: Tensor | None, delta: float, parameters: Tensor) -> Tensor:
        """Return inputs within `delta` that push the model most.

        They stay in the domain and are found by projected gradient ascent.
        """
        moved = x.clone()
        for _ in range(ASCENT_STEPS):
            variable = moved.detach().requires_grad_(True)
            gain = self.gain(variable, labels, parameters)
            if not gain.requires_grad:  # a map without gradients: the best samples and labels are left
                return x
            (slope,) = torch.autograd.grad(gain.sum(), variable)
            length = slope.norm(dim=-1, keepdim=True).clamp(min=1e-12)
            step = (variable.detach() + min(delta, 4.0) / 2 * slope / length).clamp(self.domain.low, self.domain.high)
            away = step - x
            within = delta / away.norm(dim=-1, keepdim=True).clamp(min=delta)
            moved = x + away * within * (1 - ROUNDING_MARGIN)
        return moved.clamp(self.domain.low, self.domain.high)


PoisonKind = Literal["none", "features", "labels", "features+labels", "replacement"]


class Steering(Attack):
    """Poison that pushes a linear model toward a wrong prediction.

    It poisons the best samples of every batch, or `count` samples per epoch in the batches where they weigh most.
    """

    kind: PoisonKind = "features+labels"
    ratio: float = Field(0.5, ge=0, le=1)
    delta: float = Field(1.0, gt=0)
    count: int | None = None
    last_steps_only: bool = False

    _aim: PoisonAim | None = PrivateAttr(default=None)

    def prepare(self, data: FederatedData, streams: Streams) -> State:  # noqa: ARG002
        """Prepare nothing: the aim says what to do."""
        return {}

    def learn(self, seen: AttackerObservation, state: State) -> State:  # noqa: ARG002
        """Remember the model of the next round."""
        return {"model": seen.following.clone()}

    def aimed(self, aim: PoisonAim) -> Steering:
        """Return these attackers with an aim."""
        attack = self.model_copy()
        attack._aim = aim
        return attack

    def poison(self, batches: Batches, state: State) -> Batches:
        """Poison the samples that push most."""
        aim = self._aim
        if self.kind == "none" or aim is None:
            return batches
        parameters = state.get("model", aim.parameters)
        labels = batches.y if self.kind == "features" else None
        x = batches.x
        if self.kind != "labels":
            x = aim.ascend(x, labels, 100.0 if self.kind == "replacement" else self.delta, parameters)
        y = batches.y if self.kind == "features" else aim.best_labels(x)
        with torch.no_grad():
            gain = aim.gain(x, y, parameters) - aim.gain(batches.x, batches.y, parameters)
        chosen = self._choose(gain, batches.sizes)
        return replace(batches, x=torch.where(chosen[..., None], x, batches.x), y=torch.where(chosen, y, batches.y))

    def _choose(self, gain: Tensor, sizes: Tensor) -> Tensor:
        """Return which samples to poison, (clients, steps, batch): those with most gain."""
        real = torch.arange(gain.shape[2], device=gain.device) < sizes[..., None]
        rank = gain.masked_fill(~real, -torch.inf).argsort(-1, descending=True).argsort(-1)
        return real & (rank < self._quota(sizes)[..., None])

    def _quota(self, sizes: Tensor) -> Tensor:
        """Return how many samples to poison in every batch."""
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


@dataclass(frozen=True)
class PushAim:
    """Aim of pushed updates: from which class to which, on which samples of the clean test set, all (k,).

    `lengths` are those of the residuals, (rounds, clients).
    """

    samples: NDArray[np.int64]
    labels: NDArray[np.int64]
    rivals: NDArray[np.int64]
    lengths: NDArray[np.float64]

    def direction(self, model: BoundModel, start: Tensor, features: Tensor) -> Tensor:
        """Return the unit vector, (P,), along which predictions give way.

        Only predictions that still stand count. The vector is zero if none moves.
        """
        chosen = slice(AIMED_AT_ONCE)
        x = features[torch.from_numpy(self.samples[chosen]).to(features.device)]
        labels, rivals = (torch.from_numpy(each[chosen]).to(features.device) for each in (self.labels, self.rivals))
        logits = model.logits(start[None], x)[0]
        stand = logits.gather(1, labels[:, None])[:, 0] > logits.gather(1, rivals[:, None])[:, 0]
        if stand.any():
            x, labels, rivals = x[stand], labels[stand], rivals[stand]
        parameters = start.expand(1, len(x), -1)
        weights = x.new_ones(len(x), 1)
        # Cross-entropies of two labels differ by the difference of the logits.
        toward = model.gradient(parameters, x[:, None], labels[:, None], weights)[0]
        toward = toward - model.gradient(parameters, x[:, None], rivals[:, None], weights)[0]
        tiny = torch.finfo(toward.dtype).tiny
        together = (toward / toward.norm(dim=1, keepdim=True).clamp(min=tiny)).mean(0)
        unit: Tensor = together / together.norm().clamp(min=tiny)
        return unit


class Pushing(Attack):
    """Submits residuals of given lengths along the direction in which chosen predictions give way soonest."""

    _aim: PushAim | None = PrivateAttr(default=None)

    def prepare(self, data: FederatedData, streams: Streams) -> State:  # noqa: ARG002
        """Prepare nothing: the aim says what to do."""
        return {}

    def aimed(self, aim: PushAim) -> Pushing:
        """Return these attackers with an aim."""
        attack = self.model_copy()
        attack._aim = aim
        return attack

    def craft(self, known: AttackerView, state: State) -> Tensor:  # noqa: ARG002
        """Submit the direction at its length, beside the effect of weight decay."""
        assert self._aim is not None
        start = known.round.start
        clients = known.round.clients
        lengths = torch.from_numpy(self._aim.lengths[known.round.number - 1, clients.ids]).to(start)
        decay = torch.from_numpy(1.0 - clients.retention).to(start)
        return torch.outer(lengths, self._direction(known)) - torch.outer(decay, start)

    def _direction(self, known: AttackerView) -> Tensor:
        assert self._aim is not None
        return self._aim.direction(known.model, known.round.start, known.features)


class RulePushing(Pushing):
    """Tries several distances from the honest updates, and submits what the server's rule carries farthest."""

    knowledge: ClassVar[Knowledge] = "rule"

    def craft(self, known: AttackerView, state: State) -> Tensor:
        """Submit the best of several candidate updates.

        They are some updates along the direction, and what `Pushing` submits.
        """
        found = [super().craft(known, state)]
        direction = self._direction(known)
        if len(known.honest.values):
            mean = known.honest.values.mean(0)
            apart = (known.honest.values - mean).norm(dim=1).median()
            found += [(mean + push * apart * direction).expand_as(known.own_updates) for push in PUSHES]
        return max(found, key=lambda candidate: float(known.aggregate(candidate) @ direction))
