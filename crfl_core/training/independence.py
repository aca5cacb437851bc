"""Checks before round 1 that plugins keep clients, models and groups apart."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crfl_core.errors import CrflError, PluginFailure, wrap_failures
from crfl_core.plugin_api.local_algorithm import StatefulAlgorithm
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.plugin_api.softmax_regression import LinearModel
from crfl_core.plugin_loading.mutation_guard import InputsChanged
from crfl_core.records.round import ClientUpdates
from crfl_core.training.aggregation_chain import ChainResult, States, run_chain
from crfl_core.training.features import REORDERING_TOLERANCE
from crfl_core.training.groups import ServerSteps, plugins_watching_rounds, server_steps
from crfl_core.training.local_steps import ClientMemory
from crfl_core.training.local_training import honest_models
from crfl_core.training.rounds import prepare_states
from crfl_core.training.server_optimiser import optimise

if TYPE_CHECKING:
    from crfl_core.training.federation import Federation
    from crfl_core.training.session import RoundPlan, Session

STEPS = 2
SAMPLES = 8
"""On how many samples of each of two clients it is tried."""
PARTNERS = (1e3, 1e38, math.nan)
"""Factors of the models of others, which must not matter."""


def check_independence(federation: Federation) -> None:
    """Check that clients and models do not influence each other.

    Two clients, each on two models, must train the same together and alone, and models must answer the same. Many
    clients and models are computed at once. Certificates take for granted that an attacker changes its own update only,
    whatever it does, so the others' models are also tried huge and not finite. A plugin that lets one client reach
    another breaks that: `PluginFailure`.
    """
    if trains_apart(federation):
        return
    start, rows = sample_problem(federation)
    with errors_of("model", federation.config.model):
        together = train_steps(federation, start, rows)
        for model, client in itertools.product(range(2), range(2)):
            one = slice(model, model + 1), slice(client, client + 1)
            alone = train_steps(federation, start[one], rows[one[1]], first_id=client)
            moved = alone - start[one]
            check_same(federation, "a client trains", together[one], alone, moved)
        for factor in PARTNERS:  # beside the last client on the last model
            beside = train_steps(federation, scale_others(start, factor), rows)
            check_same(federation, "a client trains", beside[-1:, -1:], alone, moved)
        models = together.flatten(0, 1)
        x = federation.features[rows.flatten()]
        for place, logits in enumerate(federation.new_model().logits(models, x)):
            single = federation.new_model().logits(models[place, None], x)[0]
            check_same(federation, "a model answers", logits, single)
        for factor in PARTNERS:
            beside = federation.new_model().logits(scale_others(models, factor), x)[-1]
            check_same(federation, "a model answers", beside, single)


def trains_apart(federation: Federation) -> bool:
    """Ask whether clients need no check.

    They need none if the core makes every step, or if each client trains on a machine of its own.
    """
    own = isinstance(federation.model, LinearModel) and federation.honest.facts.plain
    return own or not federation.data.complete


def scale_others(models: Tensor, factor: float) -> Tensor:
    """Return models with all but the last multiplied by a factor."""
    scaled = factor * models
    last = (-1,) * (models.ndim - 1)
    scaled[last] = models[last]
    return scaled


def sample_problem(federation: Federation) -> tuple[Tensor, Tensor]:
    """Return start models and training rows for a check.

    The models, (2, 2, P), all differ. The rows of the training data are (2, samples).
    """
    first = federation.start.parameters.to(federation.device, federation.dtype)
    noise = torch.randn(2, 2, len(first), generator=torch.Generator().manual_seed(0), dtype=federation.dtype)
    count = min(SAMPLES, *map(len, federation.data.partition))
    rows = [federation.data.partition[client % federation.data.clients][:count] for client in range(2)]
    return first + 0.1 * noise.to(first), torch.stack([torch.from_numpy(each) for each in rows]).to(federation.device)


def sample_memory(federation: Federation, start: Tensor, first_id: int) -> ClientMemory:
    """Return memory that differs for every model and client.

    It is empty unless the algorithm is stateful.
    """
    algorithm = federation.config.training.algorithm
    ids = tuple(range(first_id, first_id + start.shape[1]))
    if not isinstance(algorithm, StatefulAlgorithm):
        return ClientMemory(ids)
    own = {name: 0.01 * (number + 1) * start for number, name in enumerate(algorithm.remembers)}
    return ClientMemory(ids, own, {name: 0.5 * values for name, values in own.items()})


def train_steps(federation: Federation, start: Tensor, rows: Tensor, first_id: int = 0) -> Tensor:
    """Make a few steps and return the models, (R, n, P)."""
    models = honest_models(federation, start, sample_memory(federation, start, first_id))
    weights = torch.full(rows.shape, 1.0 / rows.shape[1], device=rows.device, dtype=federation.dtype)
    rates = weights.new_full((len(rows),), float(federation.participation.all_clients(1).learning_rate[0]))
    for _ in range(STEPS):
        models.step(federation.features[rows], federation.data.y[rows], weights, rates, None)
    return models.parameters().clone()


def check_same(federation: Federation, what: str, together: Tensor, alone: Tensor, moved: Tensor | None = None) -> None:
    """Raise `PluginFailure` unless both are the same up to rounding.

    Rounding is relative to what moved, or to everything if `moved` is None.
    """
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


def check_groups_apart(session: Session) -> None:
    """Check that no bit of a group depends on another group.

    The other group is computed before it. A group is trained, votes and is aggregated alone, and again in turn with a
    group whose models and updates are huge or not finite. Every group has instances of its own, so a difference shows
    what plugins keep on a class, in a module or in a library: `PluginFailure`.
    """
    federation = session.federation
    if len(federation.participation.members) == 1:
        return
    with wrap_failures(f"model {federation.config.model.full_name} cannot be copied, as every group needs its own"):
        copy.deepcopy(federation.model)
    if not trains_apart(federation):
        check_training_apart(federation)
    if not plugins_watching_rounds(federation.config):  # which refuse the certificate, and cannot be copied
        check_aggregation_apart(session)


def check_training_apart(federation: Federation) -> None:
    """Check that a client and a model work the same after others.

    One client must train the same, and one model must answer the same.
    """
    start, rows = sample_problem(federation)
    own_start, own_rows = start[-1:, -1:], rows[-1:]
    x = federation.features[own_rows.flatten()]

    def train() -> tuple[Tensor, Tensor]:
        models = train_steps(federation, own_start, own_rows, first_id=1)
        return models, federation.new_model().logits(models[0], x)

    with errors_of("model", federation.config.model):
        alone = train()
        for factor in (1.0, *PARTNERS):
            others = train_steps(federation, factor * start[:1, :1], rows[:1])
            federation.new_model().logits(others[0], x)
            after = train()
            if any(not torch.equal(one, other) for one, other in zip(alone, after, strict=True)):
                model = federation.config.model.full_name
                raise not_apart(f"model {model}, algorithm {federation.config.training.algorithm.full_name}")


def check_aggregation_apart(session: Session) -> None:
    """Check that one group's rounds do not change another's aggregates.

    The first group's rounds must be aggregated the same in turn with those of the second group.
    """
    federation = session.federation
    own, again, others = server_steps(federation.config, 4)[1:]  # the first are those of the run
    looking = (*own.aggregation, *(() if own.optimiser is None else (own.optimiser,)))
    if all(step.depends != "all" for step in looking):
        return
    try:
        alone = list(aggregate_rounds(session, own, 0, (1.0, 1.0)))
    except InputsChanged:
        raise
    except CrflError:  # it takes no such updates
        return
    beside = aggregate_rounds(session, others, 1, PARTNERS)
    in_turn = interleave(beside, aggregate_rounds(session, again, 0, (1.0, 1.0)))
    if any(not torch.equal(one.update, other.update) for one, other in zip(alone, in_turn, strict=True)):
        raise not_apart(f"aggregation, {', '.join(step.full_name for step in looking)}")


def interleave(others: Iterator[ChainResult], own: Iterator[ChainResult]) -> Iterator[ChainResult]:
    """Yield the results of a group in turn with other rounds.

    A round of the others comes before each result. Their failures do not matter.
    """
    over = False
    while True:
        if not over:
            try:
                over = next(others, None) is None
            except InputsChanged:
                raise
            except CrflError:
                over = True
        result = next(own, None)
        if result is None:
            return
        yield result


def aggregate_rounds(
    session: Session, server: ServerSteps, group: int, factors: tuple[float, ...]
) -> Iterator[ChainResult]:
    """Aggregate random updates of a group in the first rounds.

    In each round they are multiplied by a factor.
    """
    federation = session.federation
    states = prepare_states(federation, group, server)
    start = federation.start_of_group(group).parameters.to(federation.device, federation.dtype)
    for number, factor in zip(range(1, federation.config.rounds + 1), factors, strict=False):
        plan = replace(session.plan_round(number, is_run=False)[group], server=server)
        source = torch.Generator().manual_seed(number)
        drawn = torch.randn(len(plan.clients), len(start), generator=source, dtype=start.dtype).to(start.device)
        result = aggregate_once(federation, plan, 1e-2 * factor * drawn, start, states)
        states = result.states
        yield result


def aggregate_once(
    federation: Federation, plan: RoundPlan, values: Tensor, start: Tensor, states: States
) -> ChainResult:
    """Aggregate the updates of one round as the server does."""
    current = replace(plan.seen_from(start), server_side=federation.server_view(plan.number, plan.group or 0))
    result = run_chain(plan.server.aggregation, ClientUpdates(values.nan_to_num(), current), states)
    optimiser = plan.server.optimiser
    return result if optimiser is None else optimise(optimiser, plan, start, result, states)


def not_apart(who: str) -> PluginFailure:
    """Return the error of plugins that let one group reach another."""
    return PluginFailure(
        f"{who}: a group computes other numbers after another group was computed, so a client of one group reaches "
        "the models of all, and no certificate counts groups: return what must be remembered as state, and keep "
        "nothing on a class, in a module or in a library (on a GPU, set device = 'cpu')"
    )
