"""The server's optimiser: what it answers is checked, and what the model is moved by is computed here."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from crfl_core.errors import PluginFailure, failures_named
from crfl_core.plugin_api.plugin_errors import source_location
from crfl_core.plugin_api.server_optimiser import STATE_KEY, FixedRate, ServerOptimiser
from crfl_core.plugin_loading.mutation_guard import guard_inputs
from crfl_core.records.round import OptimiserResult, Round, RoundFacts, State
from crfl_core.training import aggregator_contract as answers
from crfl_core.training.aggregation import ChainResult, States
from crfl_core.training.session import Plan


def stepped(
    optimiser: ServerOptimiser | None, plan: Plan, start: Tensor, result: ChainResult, before: States
) -> ChainResult:
    """The result of a chain with the change of the model in place of the aggregate, in terms of the same updates."""
    if optimiser is None:
        return result
    if isinstance(optimiser, FixedRate):
        rate = rate_of(optimiser, plan.facts)
        return replace(moved(result, OptimiserResult(rate)), server_rate=rate)
    current = plan.seen_from(start)
    state = before.get(STATE_KEY, {})
    answer = step_of(optimiser, result.update, current, state)
    return replace(
        moved(result, answer),
        depends="all",
        states={**result.states, STATE_KEY: answer.state},
        server_rate=None,
        notes=over_time(optimiser, result.update, current, state, answer) if plan.attacked else {},
    )


def moved(result: ChainResult, answer: OptimiserResult) -> ChainResult:
    """The result with `scale * update + offset` as its update; of a scale per parameter the largest is in weights."""
    largest = float(torch.as_tensor(answer.scale).abs().max())
    lengths = length(answer.scale * result.update) + length(answer.offset)
    return replace(
        result,
        update=change(answer, result.update),
        weights=largest * result.weights,
        weight_bound=largest * result.weight_bound,
        rounding=largest * result.rounding + answers.tolerance(1, result.update) * lengths,
        has_offset=result.has_offset or answer.offset is not None,
    )


def length(vector: Tensor | None) -> float:
    """The norm in double precision; 0 if there is nothing."""
    return 0.0 if vector is None else float(vector.norm(dtype=torch.float64))


def change(answer: OptimiserResult, aggregate: Tensor) -> Tensor:
    """`scale * aggregate + offset`, (P,)."""
    scaled = answer.scale * aggregate
    return scaled if answer.offset is None else scaled + answer.offset


def over_time(
    optimiser: ServerOptimiser, aggregate: Tensor, current: Round, state: State, answer: OptimiserResult
) -> dict[str, float]:
    """What the ledger notes: the lengths of what this and earlier rounds move the model by, and what comes again.

    `next_round` is measured: the length of what this aggregate moves in the next round, if that brings nothing,
    relative to what it moves in this one. For momentum that is beta.
    """
    echo = 0.0
    if current.number < current.total:
        nothing = torch.zeros_like(aggregate)
        later = replace(current, number=current.number + 1)
        without = step_of(optimiser, nothing, current, state)
        moves = length(change(answer, aggregate) - change(without, nothing))
        kept, lost = (change(step_of(optimiser, nothing, later, one.state), nothing) for one in (answer, without))
        echo = length(kept - lost) / moves if moves else 0.0
    return {
        "optimiser.this_round": length(answer.scale * aggregate),
        "optimiser.earlier_rounds": length(answer.offset),
        "optimiser.next_round": echo,
    }


def nominal_rate(optimiser: ServerOptimiser | None, plan: Plan) -> float:
    """The server's rate as far as it is known before a round."""
    return rate_of(optimiser, plan.facts) if isinstance(optimiser, FixedRate) else 1.0


def rate_of(optimiser: FixedRate, facts: RoundFacts) -> float:
    """The rate of a round, finite and not negative."""
    who = named(optimiser, "rate")
    with failures_named(f"server.optimiser {optimiser.full_name} failed in rate"), guard_inputs(who, facts):
        rate = optimiser.rate(facts)
    if not isinstance(rate, int | float) or not 0 <= rate < math.inf:
        raise PluginFailure(f"{who} must return a finite number of at least 0, found {rate!r}")
    return float(rate)


def step_of(optimiser: ServerOptimiser, aggregate: Tensor, current: Round, state: State) -> OptimiserResult:
    """The answer of an optimiser, finite, of the right shapes and in the precision of the model."""
    who = named(optimiser, "step")
    with (
        failures_named(f"server.optimiser {optimiser.full_name} failed in step"),
        guard_inputs(who, aggregate, current, state),
    ):
        answer = optimiser.step(aggregate, current, state)
    if not isinstance(answer, OptimiserResult):
        raise PluginFailure(f"{who} must return an OptimiserResult, found {type(answer).__name__}")
    answers.check_state(who, answer.state)
    for name, shapes in (("scale", ((), aggregate.shape)), ("offset", (aggregate.shape,))):
        part = getattr(answer, name)
        if part is None and name == "offset":
            continue
        found = torch.as_tensor(part) if isinstance(part, int | float | Tensor) else None
        if found is None or found.shape not in shapes:
            shape = type(part).__name__ if found is None else f"shape {tuple(found.shape)}"
            raise PluginFailure(f"{who} returned {name} of {shape} for an aggregate of {tuple(aggregate.shape)}")
        if found.ndim and found.dtype != aggregate.dtype:
            raise PluginFailure(f"{who} returned {name} in {found.dtype} for an aggregate in {aggregate.dtype}")
        if not torch.isfinite(found).all():
            raise PluginFailure(f"{who} returned a {name} that is not finite: guard its divisions")
    if not torch.isfinite(change(answer, aggregate)).all():
        raise PluginFailure(f"{who}: scale * aggregate + offset is not finite: lower its learning rate")
    return answer


def named(optimiser: ServerOptimiser, method: str) -> str:
    """A method of an optimiser, as messages name it: the plugin, the method, file and line."""
    return f"server.optimiser {optimiser.full_name}: {method}() ({source_location(getattr(optimiser, method))})"
