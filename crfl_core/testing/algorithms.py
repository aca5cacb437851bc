"""Checks of algorithms of local training: a direction for each client, independent of the others."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from crfl_core.config import load_config
from crfl_core.errors import PluginFailure
from crfl_core.plugin_api.local_algorithm import (
    LocalAlgorithm,
    LocalRound,
    LocalStep,
    ProximalAlgorithm,
    StatefulAlgorithm,
)
from crfl_core.records.round import State, TrainingTask
from crfl_core.testing.sample_run import registry_with, small_config
from crfl_core.testing.suite import Case, CheckFailed, Skipped, check_for, difference, usage_of
from crfl_core.training.federation import build
from crfl_core.training.local_steps import apply_direction, remember_round
from crfl_core.training.local_training import LocalTraining
from crfl_core.training.models import remembered_names, training_facts

REPLICAS = 2
CLIENTS = 3
PARAMETERS = 7
STEPS = 4
RATE = 0.1
CLOSE = 1e-9
HOSTILE = (1e3, math.nan)
"""Factors of the models of other clients, which must not matter."""


@usage_of(LocalAlgorithm)
def use_algorithm(algorithm: LocalAlgorithm, case: Case[LocalAlgorithm]) -> Tensor:
    """Train ten clients in a round, from three models."""
    training = {"learning_rate": 0.1, "epochs": 1, "batch_size": 20, "algorithm": algorithm}
    registry = registry_with({case.name: type(algorithm)})
    federation = build(load_config(small_config(training=training), registry=registry).config)
    starts = 0.1 * torch.randn(3, 1, federation.model.layout.size, generator=torch.Generator().manual_seed(0))
    task = TrainingTask(1, starts.to(federation.dtype), federation.participation.participants(1), attacked=True)
    return LocalTraining(federation).train(task, slice(0, len(task.clients))).updates


def run_steps(algorithm: LocalAlgorithm, problem: Tensor, start: Tensor) -> Tensor:
    """Return the directions and the memory of some steps.

    The steps are on `1/2 ||w - problem||^2`. The result is (steps + kept, R, n, P).
    """
    state: State = {}
    parameters = start.clone()
    own, mean = sample_memory(algorithm, problem)
    ids = tuple(range(problem.shape[1]))
    directions = []
    for number in range(1, STEPS + 1):
        step = LocalStep(number, parameters - problem, parameters, start, ids, own, mean)
        answer = apply_direction(algorithm, step, state)
        parameters = parameters - RATE * answer.values
        state = answer.state
        directions.append(answer.values)
    distance = problem.new_full((len(ids), 1), STEPS * RATE)
    kept = remember_round(algorithm, LocalRound(start, parameters, distance, ids, own, mean))
    return torch.stack([*directions, *kept.values()])


def sample_memory(algorithm: LocalAlgorithm, problem: Tensor) -> tuple[State, State]:
    """Return what each client keeps, and a mean.

    Both are empty unless the algorithm is stateful.
    """
    names = algorithm.remembers if isinstance(algorithm, StatefulAlgorithm) else ()
    own = {name: 0.1 * (number + 1) * problem for number, name in enumerate(names)}
    return own, {name: 0.5 * values for name, values in own.items()}


def sample_models(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Draw the optimum and the start of each client, (R, n, P)."""
    shape = (REPLICAS, CLIENTS, PARAMETERS)
    source = torch.Generator().manual_seed(5)
    goal, start = (torch.randn(shape, generator=source, dtype=torch.float64) for _ in range(2))
    return goal.to(dtype), start.to(dtype)


def scale_others(models: Tensor, factor: float) -> Tensor:
    """Return models, (R, n, P), most of which are scaled.

    All but that of the last client and replica are multiplied by `factor`.
    """
    scaled = factor * models
    scaled[-1, -1] = models[-1, -1]
    return scaled


def free_algorithm(case: Case[LocalAlgorithm]) -> LocalAlgorithm:
    """Return the algorithm, or skip if the core makes its steps."""
    if isinstance(case.plugin, ProximalAlgorithm):
        raise Skipped("the core makes its steps")
    return case.plugin


@check_for(LocalAlgorithm)
def check_directions_are_of_the_models_precision(case: Case[LocalAlgorithm]) -> None:
    """Every model of every client gets a finite direction, in the precision of its gradient, and is left as it is."""
    algorithm = free_algorithm(case)
    for dtype in (torch.float64, torch.float32):
        try:
            found = run_steps(algorithm, *sample_models(dtype))
        except PluginFailure as error:
            raise CheckFailed("directions like the gradients", str(error), "return StepDirection((R, n, P))") from error
        if not bool(torch.isfinite(found).all()):
            raise CheckFailed("finite directions", "others", "guard divisions and roots against zero")


@check_for(LocalAlgorithm)
def check_clients_and_models_do_not_mix_directions(case: Case[LocalAlgorithm]) -> None:
    """What a client does on one of its models depends neither on other clients nor on its other models."""
    algorithm, (goal, start) = free_algorithm(case), sample_models()
    together = run_steps(algorithm, goal, start)
    for replica in range(REPLICAS):
        for client in range(CLIENTS):
            place = (slice(replica, replica + 1), slice(client, client + 1))
            gap = float((run_steps(algorithm, goal[place], start[place]) - together[(slice(None), *place)]).abs().max())
            if gap > CLOSE * (1.0 + float(together.abs().max())):
                raise CheckFailed(
                    "the same directions for a client alone",
                    f"others, by {gap:.3g}",
                    "work along the last axis only: (R, n, P) are R models of n clients",
                )
    alone = run_steps(algorithm, goal[-1:, -1:], start[-1:, -1:])
    for factor in HOSTILE:
        beside = run_steps(algorithm, scale_others(goal, factor), scale_others(start, factor))[:, -1:, -1:]
        if not bool(((beside - alone).abs() <= CLOSE * (1.0 + alone.abs())).all()):
            raise CheckFailed(
                f"the same directions beside clients whose models are {factor:g} times as large",
                "others",
                "work along the last axis only, without a sum, norm or maximum over clients or models",
            )


@check_for(LocalAlgorithm)
def check_every_round_begins_anew(case: Case[LocalAlgorithm]) -> None:
    """With an empty state the first steps are the same again, also after much longer gradients: nothing is kept."""
    algorithm = free_algorithm(case)
    goal, start = sample_models()
    first = run_steps(algorithm, goal, start)
    for long in (algorithm, case.fresh()):
        run_steps(long, HOSTILE[0] * goal, start)
    if found := difference(first, run_steps(algorithm, *sample_models())):
        raise CheckFailed("the same first steps in every round", f"that {found}", "return what you keep in `state`")


@check_for(StatefulAlgorithm)
def check_keeps_a_vector_of_the_model_under_each_name(case: Case[StatefulAlgorithm]) -> None:
    """`remember` returns finite vectors, those that `remembers` names, also for a client that made no step."""
    algorithm = case.plugin
    fix = "name every vector in `remembers`, and return (R, n, P) for each"
    goal, start = sample_models()
    try:
        names = remembered_names(algorithm)
        own, mean = sample_memory(algorithm, goal)
        for rate in (0.0, 0.3):
            distance = goal.new_full((CLIENTS, 1), rate)
            finished = LocalRound(start, start + rate * goal, distance, tuple(range(CLIENTS)), own, mean)
            answer = algorithm.remember(finished)
            remember_round(algorithm, finished)
            if not all(bool(torch.isfinite(values).all()) for values in answer.values()):
                raise CheckFailed("finite numbers", "others", "guard divisions: `distance` is 0 without steps")
    except PluginFailure as error:
        raise CheckFailed(f"a vector for each of {algorithm.configured_as}'s names", str(error), fix) from error
    if len(set(names)) != len(names):
        raise CheckFailed("different names", f"{names}", fix)


@check_for(ProximalAlgorithm)
def check_declares_proximal_weight(case: Case[ProximalAlgorithm]) -> None:
    """`proximal_weight` is a finite number of at least 0, and always the same."""
    registry = registry_with({case.name: type(case.plugin)})
    config = load_config(small_config(training={"algorithm": case.plugin}), registry=registry).config
    try:
        weights = {training_facts(config).proximal for _ in range(3)}
    except PluginFailure as error:
        raise CheckFailed("a finite weight of at least 0", str(error), "limit the option: Field(ge=0)") from error
    if len(weights) > 1:
        raise CheckFailed("one weight", f"{sorted(weights)}", "derive it from options alone")
