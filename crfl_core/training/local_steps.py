"""Steps of local training: plain SGD in the model's own layout, all others on flat parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crfl_core.errors import PluginFailure
from crfl_core.plugin_api.local_algorithm import (
    LocalAlgorithm,
    LocalRound,
    LocalStep,
    StatefulAlgorithm,
    StepDirection,
)
from crfl_core.plugin_api.model import BoundModel, GradientSteps
from crfl_core.plugin_api.plugin_errors import PluginMethod, errors_of
from crfl_core.plugin_api.softmax_regression import LinearModel
from crfl_core.plugin_loading.mutation_guard import guard_inputs

if TYPE_CHECKING:
    from crfl_core.records.round import State
    from crfl_core.training.federation import Federation

GRADIENT_NUMBERS_AT_ONCE = 2**24
"""Numbers of gradients of single samples that are in memory together."""


@dataclass(frozen=True)
class ClientMemory:
    """Memory of n clients in one round: their ids, what each keeps, and its mean, (R, n, P) by name."""

    ids: tuple[int, ...] = ()
    own: State = field(default_factory=dict)
    mean: State = field(default_factory=dict)

    def take(self, rows: slice) -> ClientMemory:
        """Return the memory of some of the clients."""
        own = {name: values[:, rows] for name, values in self.own.items()}
        return ClientMemory(self.ids[rows], own, {name: values[:, rows] for name, values in self.mean.items()})


class ProtocolSteps(GradientSteps):
    """Steps of any algorithm, with clipped gradients and a pull toward the start, on flat parameters."""

    def __init__(
        self, federation: Federation, start: Tensor, memory: ClientMemory, origin: Tensor | None = None
    ) -> None:
        super().__init__(federation.new_model(), start, origin)
        self._memory = memory
        self._facts = federation.honest.facts
        self._anchor = start
        self._algorithm = None if self._facts.plain else federation.new_algorithm()
        self._state: State = {}
        self._made = 0

    def gradient(self, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient of the batch.

        With clipping it is the mean of its samples' gradients, each clipped.
        """
        if self._facts.clip_gradients is None:
            return super().gradient(x, y, weights)
        return clipped_gradient(self._model, (self._parameters, x, y, weights), self._facts.clip_gradients)

    def adjust_gradient(self, gradient: Tensor, parameters: Tensor) -> Tensor:
        """Add the proximal pull, or ask the algorithm for its direction.

        The pull is toward the start.
        """
        if self._facts.proximal:
            gradient = gradient.add(parameters - self._anchor, alpha=self._facts.proximal)
        self._made += 1
        if self._algorithm is None:
            return gradient
        memory = self._memory
        step = LocalStep(self._made, gradient, parameters, self._anchor, memory.ids, memory.own, memory.mean)
        answer = apply_direction(self._algorithm, step, self._state)
        self._state = answer.state
        return answer.values


def apply_direction(algorithm: LocalAlgorithm, step: LocalStep, state: State) -> StepDirection:
    """Ask an algorithm for its direction and check the answer."""
    who = PluginMethod("algorithm", algorithm, "direction")
    given = step.parameters, step.start, step.memory, step.mean
    with errors_of("training.algorithm", algorithm), guard_inputs(who, *given):
        answer = algorithm.direction(step, state)
    if not isinstance(answer, StepDirection):
        raise PluginFailure(f"{who} must return a StepDirection, found {type(answer).__name__}")
    values = answer.values
    if not isinstance(values, Tensor) or values.shape != step.gradient.shape or values.dtype != step.gradient.dtype:
        found = f"{tuple(values.shape)} of {values.dtype}" if isinstance(values, Tensor) else type(values).__name__
        raise PluginFailure(
            f"{who} must go somewhere in each of {tuple(step.gradient.shape)} of {step.gradient.dtype}, found {found}"
        )
    return answer


def remember_round(algorithm: LocalAlgorithm, finished: LocalRound) -> State:
    """Ask an algorithm what clients keep of a round.

    A vector that is not finite is replaced by the one that the client kept before.
    """
    if not isinstance(algorithm, StatefulAlgorithm):
        return {}
    who = PluginMethod("algorithm", algorithm, "remember")
    with errors_of("training.algorithm", algorithm), guard_inputs(who, finished):
        answer = algorithm.remember(finished)
    names = set(algorithm.remembers)
    if not isinstance(answer, dict) or set(answer) != names:
        found = sorted(map(str, answer)) if isinstance(answer, dict) else type(answer).__name__
        raise PluginFailure(f"{who} must return {sorted(names)}, found {found}")
    kept = {}
    for name, values in answer.items():
        start = finished.start
        if not isinstance(values, Tensor) or values.shape != start.shape or values.dtype != start.dtype:
            found = f"{tuple(values.shape)} of {values.dtype}" if isinstance(values, Tensor) else type(values).__name__
            raise PluginFailure(
                f"{who} must keep {tuple(start.shape)} numbers of {start.dtype} as {name!r}, found {found}"
            )
        finite = torch.isfinite(values).all(-1, keepdim=True)
        kept[name] = torch.where(finite, values, finished.memory[name]).detach()
    return kept


def clipped_gradient(model: BoundModel, problem: tuple[Tensor, Tensor, Tensor, Tensor], longest: float) -> Tensor:
    """Return the mean of clipped gradients of every client and replica.

    The result is `sum_b weight_b min(1, longest / ||g_b||) g_b`, (R, n, P). It is never longer than `longest`.
    `problem` are the arguments of `BoundModel.gradient`. The core clips, whatever the model says of itself.
    """
    parameters, x, y, weights = problem
    if isinstance(model, LinearModel):
        return model.gradient(parameters, x, y, weights, longest)
    total = torch.zeros_like(parameters)
    at_once = max(1, GRADIENT_NUMBERS_AT_ONCE // parameters.numel())
    for first in range(0, y.shape[1], at_once):
        part = slice(first, first + at_once)
        each = model.sample_gradients(parameters, x[:, part], y[:, part])
        expected = (*parameters.shape[:2], y[:, part].shape[1], parameters.shape[2])
        if each.shape != expected:
            raise PluginFailure(f"model: sample_gradients() must return {expected}, found {tuple(each.shape)}")
        shares = weights[:, part] * (longest / torch.linalg.vector_norm(each, dim=-1)).clamp(max=1.0)
        total += torch.matmul(shares[:, :, None], each)[:, :, 0]
    return total
