"""Steps of local training: plain SGD in the model's own layout, all others on flat parameters; independence checks."""

from __future__ import annotations

import torch
from torch import Tensor

from crfl_core.errors import PluginFailure
from crfl_core.plugin_api.local_algorithm import LocalAlgorithm, LocalStep, StepDirection
from crfl_core.plugin_api.model import BoundModel, GradientSteps, LocalModels
from crfl_core.plugin_api.plugin_errors import errors_of, source_location
from crfl_core.plugin_api.softmax_regression import LinearModel, LinearSteps
from crfl_core.plugin_loading.mutation_guard import guard_inputs
from crfl_core.records.round import State
from crfl_core.training.features import REORDERING_TOLERANCE
from crfl_core.training.federation import Federation

GRADIENT_NUMBERS_AT_ONCE = 2**24
"""How many numbers the gradients of single samples may have that are in memory together."""


def honest_models(federation: Federation, start: Tensor) -> LocalModels:
    """Return the models of clients that train as the protocol says, from `start`, (R, n, P)."""
    model = federation.model
    facts = federation.honest.facts
    if not facts.plain or facts.proximal:
        return ProtocolSteps(federation, start)
    if facts.clip_gradients is None:
        return model.local_models(start)
    if isinstance(model, LinearModel):
        return LinearSteps(model.layout, start, facts.clip_gradients)
    return ProtocolSteps(federation, start)


class ProtocolSteps(GradientSteps):
    """Steps of any algorithm, with clipped gradients and a pull toward the start, on flat parameters."""

    def __init__(self, federation: Federation, start: Tensor) -> None:
        super().__init__(federation.model, start)
        self._facts = federation.honest.facts
        self._anchor = start
        self._algorithm = None if self._facts.plain else federation.config.training.algorithm
        self._state: State = {}
        self._made = 0

    def gradient(self, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient of the batch, or the mean of its samples' gradients, each clipped."""
        if self._facts.clip_gradients is None:
            return super().gradient(x, y, weights)
        return clipped_gradient(self._model, (self._parameters, x, y, weights), self._facts.clip_gradients)

    def adjust_gradient(self, gradient: Tensor, parameters: Tensor) -> Tensor:
        """Add the pull toward the start, or ask the algorithm for its direction."""
        if self._facts.proximal:
            gradient = gradient.add(parameters - self._anchor, alpha=self._facts.proximal)
        self._made += 1
        if self._algorithm is None:
            return gradient
        step = LocalStep(self._made, gradient, parameters, self._anchor)
        answer = apply_direction(self._algorithm, step, self._state)
        self._state = answer.state
        return answer.values


def apply_direction(algorithm: LocalAlgorithm, step: LocalStep, state: State) -> StepDirection:
    """Ask an algorithm for its direction, given a gradient, and check the answer."""
    place = f"algorithm {algorithm.full_name}: direction() ({source_location(type(algorithm).direction)})"
    with errors_of("training.algorithm", algorithm), guard_inputs(place, step.parameters, step.start):
        answer = algorithm.direction(step, state)
    if not isinstance(answer, StepDirection):
        raise PluginFailure(f"{place} must return a StepDirection, found {type(answer).__name__}")
    values = answer.values
    if not isinstance(values, Tensor) or values.shape != step.gradient.shape or values.dtype != step.gradient.dtype:
        found = f"{tuple(values.shape)} of {values.dtype}" if isinstance(values, Tensor) else type(values).__name__
        raise PluginFailure(
            f"{place} must go somewhere in each of {tuple(step.gradient.shape)} of {step.gradient.dtype}, found {found}"
        )
    return answer


def clipped_gradient(model: BoundModel, problem: tuple[Tensor, Tensor, Tensor, Tensor], longest: float) -> Tensor:
    """Return `sum_b weight_b min(1, longest / ||g_b||) g_b` for every client and replica, (R, n, P).

    It is never longer than `longest`. `problem` are the arguments of `BoundModel.gradient`. The core clips, whatever
    the model says of itself.
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


STEPS = 2
SAMPLES = 8
"""On how many samples of each of two clients it is tried."""


def check_independence(federation: Federation) -> None:
    """Check that two clients, each on two models, train the same together and alone, and that models answer the same.

    Many clients and models are computed at once, also those of different groups. Certificates take for granted that an
    attacker changes its own update only. A plugin that lets one client reach another breaks that: `PluginFailure`.
    """
    own = isinstance(federation.model, LinearModel)
    if (own and federation.honest.facts.plain) or not federation.data.complete:  # elsewhere, each trains alone
        return
    start, rows = sample_problem(federation)
    with errors_of("model", federation.config.model):
        together = train_steps(federation, start, rows)
        for model in range(2):
            for client in range(2):
                one = slice(model, model + 1), slice(client, client + 1)
                alone = train_steps(federation, start[one], rows[one[1]])
                check_same(federation, "a client trains", together[one], alone, together[one] - start[one])
        models = together.flatten(0, 1)
        x = federation.features[rows.flatten()]
        logits = federation.model.logits(models, x)
        for place in range(len(models)):
            check_same(federation, "a model answers", logits[place], federation.model.logits(models[place, None], x)[0])


def sample_problem(federation: Federation) -> tuple[Tensor, Tensor]:
    """Return models to start from, (2, 2, P), which all differ, and rows of the training data, (2, samples)."""
    first = federation.start.parameters.to(federation.device, federation.dtype)
    noise = torch.randn(2, 2, len(first), generator=torch.Generator().manual_seed(0), dtype=federation.dtype)
    count = min(SAMPLES, *map(len, federation.data.partition))
    rows = [federation.data.partition[client % federation.data.clients][:count] for client in range(2)]
    return first + 0.1 * noise.to(first), torch.stack([torch.from_numpy(each) for each in rows]).to(federation.device)


def train_steps(federation: Federation, start: Tensor, rows: Tensor) -> Tensor:
    """Make a few steps from `start` and return the models, (R, n, P)."""
    models = honest_models(federation, start)
    weights = torch.full(rows.shape, 1.0 / rows.shape[1], device=rows.device, dtype=federation.dtype)
    rates = weights.new_full((len(rows),), float(federation.participation.all_clients(1).learning_rate[0]))
    for _ in range(STEPS):
        models.step(federation.features[rows], federation.data.y[rows], weights, rates, None)
    return models.parameters().clone()


def check_same(federation: Federation, what: str, together: Tensor, alone: Tensor, moved: Tensor | None = None) -> None:
    """Raise `PluginFailure` unless both are the same up to rounding, relative to what moved, or to everything."""
    rounding = REORDERING_TOLERANCE[federation.dtype]
    scale = alone if moved is None else moved
    allowed = rounding * float(scale.norm()) + 1e-2 * rounding * float(alone.norm())
    gap = float((together - alone).norm())
    if not gap <= allowed and bool(torch.isfinite(alone).all()):
        model = federation.config.model.full_name
        algorithm = federation.config.training.algorithm.full_name
        raise PluginFailure(
            f"model {model}, algorithm {algorithm}: {what} differently beside others than alone (by {gap:.3g}): what "
            "they compute for one client and model must not depend on another's, such as a norm over all of them"
        )
