"""The server's optimiser: its answers are checked, and the core computes the change of the model."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crfl_core.errors import PluginFailure
from crfl_core.plugin_api.plugin_errors import PluginMethod, method_errors
from crfl_core.plugin_api.server_optimiser import STATE_KEY, FixedRate, ServerOptimiser
from crfl_core.plugin_loading.mutation_guard import guard_inputs
from crfl_core.records.round import OptimiserResult, Round, RoundFacts, State
from crfl_core.training import aggregator_contract as contract

if TYPE_CHECKING:
    from crfl_core.training.aggregation_chain import ChainResult, States
    from crfl_core.training.groups import FixedAnswers
    from crfl_core.training.session import RoundPlan


def optimise(
    optimiser: ServerOptimiser, plan: RoundPlan, start: Tensor, result: ChainResult, before: States
) -> ChainResult:
    """Return the change of the model in place of the aggregate.

    It is in terms of the same updates.
    """
    if isinstance(optimiser, FixedRate):
        rate = ask_rate(optimiser, plan.facts, plan.server.answers)
        return replace(apply_step(result, OptimiserResult(rate)), server_rate=rate)
    current = plan.seen_from(start)
    state = before.get(STATE_KEY, {})
    answer = ask_step(optimiser, result.update, current, state)
    return replace(
        apply_step(result, answer),
        depends="all",
        states={**result.states, STATE_KEY: answer.state},
        server_rate=None,
        notes=momentum_notes(optimiser, result.update, current, state, answer) if plan.is_run else {},
    )


def apply_step(result: ChainResult, answer: OptimiserResult) -> ChainResult:
    """Return the result with `scale * update + offset` as its update.

    Of a scale per parameter the largest enters the weights.
    """
    largest = float(torch.as_tensor(answer.scale).abs().max())
    lengths = length(answer.scale * result.update) + length(answer.offset)
    return replace(
        result,
        update=model_change(answer, result.update),
        weights=largest * result.weights,
        weight_bound=largest * result.weight_bound,
        rounding=largest * result.rounding + contract.tolerance(1, result.update) * lengths,
        has_offset=result.has_offset or answer.offset is not None,
    )


def length(vector: Tensor | None) -> float:
    """Return the norm in double precision; 0 if there is no vector."""
    return 0.0 if vector is None else float(vector.norm(dtype=torch.float64))


def model_change(answer: OptimiserResult, aggregate: Tensor) -> Tensor:
    """Return `scale * aggregate + offset`, (P,)."""
    scaled = answer.scale * aggregate
    return scaled if answer.offset is None else scaled + answer.offset


def momentum_notes(
    optimiser: ServerOptimiser, aggregate: Tensor, current: Round, state: State, answer: OptimiserResult
) -> dict[str, float]:
    """Return what the ledger notes about momentum in a round.

    The notes say how far this and earlier rounds move the model, and how much comes again. `next_round` is measured:
    the length of what this aggregate moves in the next round, if that round has a zero aggregate, relative to what it
    moves in this one. For momentum that is beta.
    """
    echo = 0.0
    if current.number < current.total:
        zero = torch.zeros_like(aggregate)
        later = replace(current, number=current.number + 1)
        without = ask_step(optimiser, zero, current, state)
        moves = length(model_change(answer, aggregate) - model_change(without, zero))
        kept = model_change(ask_step(optimiser, zero, later, answer.state), zero)
        lost = model_change(ask_step(optimiser, zero, later, without.state), zero)
        echo = length(kept - lost) / moves if moves else 0.0
    return {
        "optimiser.this_round": length(answer.scale * aggregate),
        "optimiser.earlier_rounds": length(answer.offset),
        "optimiser.next_round": echo,
    }


def nominal_rate(optimiser: ServerOptimiser, plan: RoundPlan) -> float:
    """Return the server's rate as far as known before a round.

    It is 1 if the rate is not known.
    """
    return ask_rate(optimiser, plan.facts, plan.server.answers) if isinstance(optimiser, FixedRate) else 1.0


def ask_rate(optimiser: FixedRate, facts: RoundFacts, answers: FixedAnswers | None = None) -> float:
    """Ask an optimiser for the rate of a round.

    It is finite and not negative. With `answers` it is the same as before.
    """
    who = PluginMethod("server.optimiser", optimiser, "rate")

    def rate() -> float:
        with method_errors(who), guard_inputs(who, facts):
            found = optimiser.rate(facts)
        if not isinstance(found, int | float) or not 0 <= found < math.inf:
            raise PluginFailure(f"{who} must return a finite number of at least 0, found {found!r}")
        return float(found)

    return rate() if answers is None else answers.ask(who, facts, rate)


def ask_step(optimiser: ServerOptimiser, aggregate: Tensor, current: Round, state: State) -> OptimiserResult:
    """Ask an optimiser for its step and check it.

    The step must be finite, of the right shapes and in the precision of the model.
    """
    who = PluginMethod("server.optimiser", optimiser, "step")
    with method_errors(who), guard_inputs(who, aggregate, current, state):
        answer = optimiser.step(aggregate, current, state)
    if not isinstance(answer, OptimiserResult):
        raise PluginFailure(f"{who} must return an OptimiserResult, found {type(answer).__name__}")
    contract.check_state(who, answer.state)
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
    if not torch.isfinite(model_change(answer, aggregate)).all():
        raise PluginFailure(f"{who}: scale * aggregate + offset is not finite: lower its learning rate")
    return answer
