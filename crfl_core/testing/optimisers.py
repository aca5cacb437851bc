"""Checks of server optimisers: finite steps along the aggregate, state in checkpoints, fixed rates."""

from __future__ import annotations

import itertools
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from crfl_core.errors import CrflError, PluginFailure
from crfl_core.plugin_api.server_optimiser import FixedRate, ServerOptimiser
from crfl_core.records.round import OptimiserResult, Round, State
from crfl_core.testing.aggregation_steps import FLOATS, through_checkpoint
from crfl_core.testing.sample_rounds import HUGE, gaussian, round_of
from crfl_core.testing.suite import Case, CheckFailed, Skipped, check_for, difference, usage_of
from crfl_core.training.server_optimiser import ask_rate, ask_step, model_change

CLIENTS = 4


@usage_of(ServerOptimiser)
def use_optimiser(optimiser: ServerOptimiser, case: Case[ServerOptimiser]) -> list[object]:
    """Run the optimiser for three rounds."""
    del case
    return [answer for answer, _ in run_optimiser(optimiser, [gaussian(1, 6, seed)[0] for seed in range(3)])]


@check_for(ServerOptimiser)
def check_answers_every_aggregate(case: Case[ServerOptimiser]) -> None:
    """Finite aggregates of any size and length, zeros among them, get finite answers of the right shape."""
    for dtype in FLOATS:
        for name, aggregates in situations().items():
            try:
                run_optimiser(case.plugin, aggregates, dtype)
            except CrflError as error:
                raise CheckFailed(
                    f"answers to {name} in {dtype}",
                    str(error),
                    "guard divisions by zero, compute squares so that they do not overflow, and keep the precision",
                ) from error


@check_for(ServerOptimiser)
def check_nothing_moves_nothing(case: Case[ServerOptimiser]) -> None:
    """A first aggregate of zero leaves the model where it is."""
    ((answer, aggregate),) = run_optimiser(case.plugin, [np.zeros(6)])
    moved = float(model_change(answer, aggregate).norm())
    if moved > 0:
        raise CheckFailed("no change by an aggregate of zero", f"one of norm {moved:.3g}", "begin with an empty memory")


@check_for(ServerOptimiser)
def check_the_model_moves_along_the_aggregate(case: Case[ServerOptimiser]) -> None:
    """No parameter is moved against the aggregate of its round: scales are not negative."""
    for name, aggregates in situations().items():
        for answer, _ in run_optimiser(case.plugin, aggregates):
            least = float(torch.as_tensor(answer.scale).min())
            if least < 0:
                raise CheckFailed(
                    f"scales of at least 0 for {name}", f"{least:.3g}", "report what earlier rounds move as `offset`"
                )


@check_for(ServerOptimiser)
def check_step_keeps_inputs(case: Case[ServerOptimiser]) -> None:
    """Aggregate, broadcast model and state are as they were before, and no answer shares memory with them."""
    if isinstance(case.plugin, FixedRate):
        raise Skipped("it sees neither aggregate nor model")
    for dtype in FLOATS:
        (first, _), *_ = run_optimiser(case.plugin, [gaussian(1, 6)[0]], dtype)
        current = current_round(2, 6, dtype)
        aggregate = torch.from_numpy(gaussian(1, 6, 1)[0]).to(dtype)
        given = (aggregate, current.start, dict(first.state))
        kept = (aggregate.clone(), current.start.clone(), {name: part.clone() for name, part in first.state.items()})
        answer: OptimiserResult | None = None
        with suppress(PluginFailure):
            answer = case.plugin.step(aggregate, current, first.state)
        if found := difference(kept, given, "the input"):
            raise CheckFailed(f"the input unchanged, {dtype}", found, "work on a copy: tensor.clone()")
        parts = {} if answer is None else parts_of(answer)
        sources = {"the aggregate": aggregate, "the broadcast model": current.start, **given[2]}
        for (part, tensor), (what, source) in itertools.product(parts.items(), sources.items()):
            if tensor.numel() and tensor.untyped_storage().data_ptr() == source.untyped_storage().data_ptr():
                raise CheckFailed(f"new tensors, {dtype}", f"that {part} is a view of {what}", "return a copy")


@check_for(ServerOptimiser)
def check_memory_survives_a_checkpoint(case: Case[ServerOptimiser]) -> None:
    """A run that is resumed from plain tensors in every round continues exactly like one that never stopped."""
    if isinstance(case.plugin, FixedRate):
        raise Skipped("it has no memory")
    going: State = {}
    stored: State = {}
    steady = case.fresh()
    for number in range(1, 5):
        aggregate = torch.from_numpy(gaussian(1, 6, number)[0])
        current = current_round(number, 6, torch.float64)
        kept = ask_step(steady, aggregate, current, going)
        resumed = ask_step(case.fresh(), aggregate, current, stored)
        ask_step(steady, 2.0 * aggregate, current, {})  # as for another model of the same round
        going = kept.state
        stored = through_checkpoint(resumed.state)
        if found := difference(kept, resumed):
            raise CheckFailed(
                "the same answers after a resume",
                f"that in round {number} {found}",
                "return everything that the next round needs as tensors in `state`, and keep nothing on the instance",
            )


@check_for(FixedRate)
def check_rate_is_the_same_when_asked_again(case: Case[FixedRate]) -> None:
    """A rate follows from the facts of its round alone: asked again, in any order, it is the same."""
    facts = [current_round(number, 6, torch.float64).facts for number in range(1, 6)]
    forward = [ask_rate(case.plugin, one) for one in facts]
    backward = [ask_rate(case.fresh(), one) for one in reversed(facts)][::-1]
    if forward != backward:
        raise CheckFailed(
            "the same rates in another order",
            f"{forward} and {backward}",
            "compute the rate from the facts that are given, and remember nothing",
        )


def situations() -> dict[str, list[np.ndarray[tuple[int], np.dtype[np.float64]]]]:
    """Return aggregates of some rounds, by name."""
    ordinary = [gaussian(1, 6, seed)[0] for seed in range(4)]
    return {
        "ordinary rounds": ordinary,
        "rounds of zeros": [np.zeros(6)] * 3,
        "a round of zeros after others": [*ordinary, np.zeros(6)],
        "a huge aggregate": [ordinary[0], HUGE * ordinary[1], ordinary[2]],
        "tiny aggregates": [1e-30 * one for one in ordinary],
        "a single parameter": [one[:1] for one in ordinary],
        "10,000 parameters": [gaussian(1, 10_000, seed)[0] for seed in range(2)],
    }


def run_optimiser(
    optimiser: ServerOptimiser,
    aggregates: list[np.ndarray[tuple[int], np.dtype[np.float64]]],
    dtype: torch.dtype = torch.float64,
) -> list[tuple[OptimiserResult, Tensor]]:
    """Run the optimiser as the core does.

    Return its answers with the aggregates.
    """
    state: State = {}
    answered: list[tuple[OptimiserResult, Tensor]] = []
    for number, values in enumerate(aggregates, start=1):
        aggregate = torch.from_numpy(values).to(dtype)
        current = current_round(number, len(values), dtype)
        if isinstance(optimiser, FixedRate):
            answer = OptimiserResult(ask_rate(optimiser, current.facts))
        else:
            answer = ask_step(optimiser, aggregate, current, state)
        answered.append((answer, aggregate))
        state = answer.state
    return answered


def current_round(number: int, size: int, dtype: torch.dtype) -> Round:
    """Return a round of a model with this number of parameters."""
    return round_of(torch.zeros(CLIENTS, size, dtype=dtype), number=number).round


def parts_of(answer: OptimiserResult) -> dict[str, Tensor]:
    """Return every tensor of an answer, by name."""
    named = {name: value for name, value in vars(answer).items() if isinstance(value, Tensor)}
    return named | {f"state[{name!r}]": tensor for name, tensor in answer.state.items()}
