"""Contract of the steps of an aggregation: every answer is checked against what the step did."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from crfl_core.errors import PluginFailure, wrap_failures
from crfl_core.plugin_api.aggregator import (
    AggregationStep,
    Aggregator,
    CapStage,
    FixedStage,
    LinearAggregator,
    Stage,
    WeightedRule,
)
from crfl_core.plugin_api.plugin_errors import PluginMethod, method_errors
from crfl_core.plugin_loading.mutation_guard import guard_inputs
from crfl_core.records.round import Clients, ClientUpdates, Mixing, RoundFacts, RuleResult, StageResult, State

if TYPE_CHECKING:
    from crfl_core.plugin_api.server_view import ServerView
    from crfl_core.training.groups import FixedAnswers

T = TypeVar("T")
Shapes = list[tuple[int, ...]]
CHECKED_NUMBERS_AT_ONCE = 2**20
"""Numbers of the updates on which an identity is checked at a time."""


def ask(step: AggregationStep, method: str, expected: type[T], *arguments: Any) -> T:
    """Call a method of a step and check its answer.

    The answer must have the expected type, and the inputs must not change.
    """
    who = PluginMethod("aggregator", step, method)
    with method_errors(who), guard_inputs(who, *arguments):
        answer = getattr(step, method)(*arguments)
    if not isinstance(answer, expected):
        raise PluginFailure(f"{who} must return a {expected.__name__}, found {type(answer).__name__}")
    if isinstance(answer, StageResult | RuleResult):
        check_state(who, answer.state)
    if isinstance(answer, RuleResult):
        check_notes(who, answer.notes)
    return answer


def check_state(who: object, state: object) -> State:
    """Return the state, or raise `PluginFailure` unless it is tensors by name.

    A checkpoint could not hold anything else.
    """
    if not isinstance(state, Mapping):
        raise PluginFailure(f"{who} must return `state` as a mapping of tensors, found {type(state).__name__}")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise PluginFailure(f"{who}: state[{name!r}] must be a tensor, found {type(value).__name__}")
        refuse_gradient(who, f"state[{name!r}]", value)
    return state


def refuse_gradient(who: object, name: str, values: Tensor) -> None:
    """Raise `PluginFailure` if an answer keeps a graph of gradients.

    No later step needs the graph or could store it.
    """
    if values.requires_grad:
        raise PluginFailure(f"{who} returned {name} with requires_grad: end with {name}.detach()")


def check_notes(who: object, notes: Mapping[str, float]) -> None:
    """Raise `PluginFailure` unless notes are finite numbers by name.

    The ledger could not hold others.
    """
    for name, value in notes.items():
        if not isinstance(name, str) or not isinstance(value, int | float) or not math.isfinite(value):
            raise PluginFailure(f"{who}: notes[{name!r}] must be a finite number, found {value!r}")


def ask_initial_state(step: AggregationStep, server: ServerView) -> State:
    """Ask a step for the state with which it begins.

    The state of a step that must not look at the updates is empty.
    """
    if step.depends != "all":
        return {}
    state = ask(step, "prepare", object, server if type(step).needs_root else replace(server, root=None))
    return check_state(PluginMethod("aggregator", step, "prepare"), state)


def hide_root_samples(step: AggregationStep, updates: ClientUpdates) -> ClientUpdates:
    """Return the updates as a step may see them.

    Only steps with `needs_root` get the server's samples.
    """
    server = updates.round.server_side
    if server is None or server.root is None or type(step).needs_root:
        return updates
    return replace(updates, round=replace(updates.round, server_side=replace(server, root=None)))


def ask_caps(stage: CapStage, clients: Clients, answers: FixedAnswers | None = None) -> Tensor:
    """Ask a stage for its caps, (n,), float64.

    With `answers` they are the same as before.
    """

    def caps() -> Tensor:
        return check_per_client(stage, "caps", ask(stage, "caps", Tensor, clients), clients, "not negative", 0.0)

    return caps() if answers is None else answers.ask(PluginMethod("aggregator", stage, "caps"), clients, caps)


def ask_weights(rule: LinearAggregator, clients: Clients, answers: FixedAnswers | None = None) -> Tensor:
    """Ask a linear rule for its weights, (n,), float64.

    With `answers` they are the same as before.
    """

    def weights() -> Tensor:
        return check_per_client(rule, "weights", ask(rule, "weights", Tensor, clients), clients, "finite", None)

    return weights() if answers is None else answers.ask(PluginMethod("aggregator", rule, "weights"), clients, weights)


def check_per_client(
    step: AggregationStep, what: str, values: Tensor, clients: Clients, required: str, least: float | None
) -> Tensor:
    """Return the values as float64, or raise `PluginFailure`.

    There must be a valid number for each participant.
    """
    right = values.shape == (len(clients),)
    if not right or not (torch.isfinite(values) if least is None else values >= least).all():
        found = f"shape {tuple(values.shape)}" if not right else "others"
        raise PluginFailure(
            f"{PluginMethod('aggregator', step, what)} must return {len(clients)} numbers, {required}: found {found}"
        )
    return values.detach().double()


def ask_mixing(stage: FixedStage, facts: RoundFacts, answers: FixedAnswers | None = None) -> Mixing:
    """Ask a fixed stage what it does in a round.

    The shapes are checked. With `answers` the answer is the same as before.
    """

    def mixing() -> Mixing:
        return check_mixing(stage, ask(stage, "mixing", Mixing, facts), facts)

    return mixing() if answers is None else answers.ask(PluginMethod("aggregator", stage, "mixing"), facts, mixing)


def check_mixing(stage: FixedStage, mixing: Mixing, facts: RoundFacts) -> Mixing:
    """Return a mixing, or raise `PluginFailure` if it is not valid.

    Its shapes must fit the round, and its numbers must be finite.
    """
    clients = len(facts.clients)
    size = facts.layout.size
    rows = max(1, count_rows(mixing.matrix))
    shapes = {"matrix": [(rows, clients), (clients,)], "offset": [(rows, size), (size,)]}
    check_shapes(stage, mixing, shapes, (clients, size))
    if not all(torch.isfinite(part).all() for part in (mixing.matrix, mixing.offset) if part is not None):
        raise PluginFailure(
            f"{PluginMethod('aggregator', stage, 'mixing')} returned numbers that are not finite: guard its divisions"
        )
    return mixing


def count_rows(answer: object) -> int:
    """Return how many rows an answer has.

    It is 0 if the answer is not a tensor with rows.
    """
    return len(answer) if isinstance(answer, Tensor) and answer.ndim else 0


def ask_transform(stage: Stage, updates: ClientUpdates, state: State) -> StageResult:
    """Ask a stage that looks at the updates for its answer.

    The shapes and the precision of the answer are checked.
    """
    result = ask(stage, "transform", StageResult, hide_root_samples(stage, updates), state)
    (clients, size), rows = updates.values.shape, count_rows(result.values)
    mixing: Shapes = [(rows, clients), (clients,)] if rows == clients else [(rows, clients)]
    shapes: dict[str, Shapes] = {"values": [(rows, size)], "mixing": mixing, "offset": [(rows, size), (size,)]}
    check_shapes(stage, result, shapes, (clients, size))
    check_precision(stage, "values", result.values, updates.values)
    return result


def ask_aggregate(
    rule: Aggregator, updates: ClientUpdates, state: State, answers: FixedAnswers | None = None
) -> RuleResult:
    """Ask a rule for its answer, finite and of the right shapes.

    The core itself adds up what a linear rule weighs.
    """
    if isinstance(rule, LinearAggregator):
        weights = ask_weights(rule, updates.round.clients, answers).to(updates.values.device)
        return RuleResult(update=weights.to(updates.values) @ updates.values, weights=weights, state=state)
    result = ask(rule, "aggregate", RuleResult, hide_root_samples(rule, updates), state)
    clients, size = updates.values.shape
    check_shapes(rule, result, {"update": [(size,)], "weights": [(clients,)], "offset": [(size,)]}, (clients, size))
    if not (torch.isfinite(result.update).all() and torch.isfinite(result.weights).all()):
        who = PluginMethod("aggregator", rule, "aggregate")
        raise PluginFailure(f"{who} returned a non-finite update or weights for finite updates")
    check_precision(rule, "update", result.update, updates.values)
    return result


def check_precision(step: AggregationStep, what: str, found: Tensor, values: Tensor) -> None:
    """Raise `PluginFailure` unless an answer has the precision of the updates.

    This is for answers that become a model.
    """
    if found.dtype != values.dtype:
        who = PluginMethod("aggregator", step, answer_method(step))
        raise PluginFailure(
            f"{who} returned {what} in {found.dtype} for updates in {values.dtype}: end with {what}.to(updates.values)"
        )


def answer_method(step: AggregationStep) -> str:
    """Return the name of the method that a step answers with."""
    if isinstance(step, Aggregator):
        return "weigh" if isinstance(step, WeightedRule) else "aggregate"
    return "mixing" if isinstance(step, FixedStage) else "transform"


def check_weights(rule: Aggregator, result: RuleResult, values: Tensor) -> None:
    """Check `update = sum_i p_i u_i + offset`.

    If the rule has a weight per parameter, these weights are checked.
    """
    if result.full_weights is None:
        check_identity(rule, result.update[None], result.weights[None], values, result.offset)
        return
    full = ask_full_weights(rule, result, values)
    offset = torch.zeros_like(result.update) if result.offset is None else result.offset
    for columns in column_blocks(values):
        parts = full[:, columns] * values[:, columns]
        shift = offset[columns]
        gap = (parts.sum(0) + shift - result.update[columns]).abs_()
        limit = tolerance(len(values), values) * (parts.abs_().sum(0) + shift.abs())
        refuse_gap(rule, gap, limit, "update = sum_i p_i u_i + offset")


def ask_full_weights(rule: Aggregator, result: RuleResult, values: Tensor) -> Tensor:
    """Ask for the weight of every client and parameter.

    `weights` must have each client's largest.
    """
    assert result.full_weights is not None
    with wrap_failures(f"aggregator {rule.full_name} failed in full_weights"):
        full = result.full_weights()
    if isinstance(full, Tensor):
        refuse_gradient(PluginMethod("aggregator", rule, "aggregate"), "full_weights", full)
    right = isinstance(full, Tensor) and full.shape == values.shape
    largest = torch.maximum(full.amax(1), -full.amin(1)).to(result.weights) if right else result.weights
    if not right or not torch.allclose(largest, result.weights.abs(), rtol=tolerance(8, full), atol=0):
        raise PluginFailure(
            f"{PluginMethod('aggregator', rule, 'aggregate')}: `weights` must be the largest of each client's "
            f"{tuple(values.shape)} full weights"
        )
    return full


def check_identity(step: AggregationStep, found: Tensor, mixing: Tensor, values: Tensor, offset: Tensor | None) -> None:
    """Check `found = mixing @ values + offset` in every coordinate.

    It must hold up to the rounding of these sums in any order.
    """
    is_rule = isinstance(step, Aggregator)
    what = "update = sum_i p_i u_i + offset" if is_rule else "values = mixing @ updates + offset"
    for gap, limit in identity_gaps(found, mixing, values, offset):
        refuse_gap(step, gap, limit, what)


def identity_gaps(
    found: Tensor, mixing: Tensor, values: Tensor, offset: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield by how much `found` misses `mixing @ values + offset`.

    Each gap comes with what rounding explains of it. Blocks of columns without a gap are left out.
    """
    matrix = mixing.to(values)
    for columns in column_blocks(values):
        block = values[:, columns]
        shift = None if offset is None else offset[..., columns]
        gap = mix(matrix, block, shift).sub_(found[:, columns]).abs_()
        if gap.any():
            sizes = mix(matrix.abs(), block.abs(), None if shift is None else shift.abs())
            yield gap, sizes.mul_(tolerance(len(values), values))


def check_reported(who: str, weights: object, reported: RuleResult, values: Tensor) -> None:
    """Check that a plugin's own weights give the same update.

    They take the place of the chain's weights.
    """
    if not isinstance(weights, Tensor) or weights.shape != reported.weights.shape:
        raise PluginFailure(f"{who}: crfl_effective_weights must return a tensor of {len(values)} weights")
    refuse_gradient(f"{who}: crfl_effective_weights", "weights", weights)
    for gap, limit in identity_gaps(reported.update[None], weights[None], values, reported.offset):
        if not (gap <= limit).all():
            raise PluginFailure(
                f"{who}: crfl_effective_weights does not reconstruct the aggregate: sum_i p_i u_i + offset misses it "
                f"by {float(gap.nan_to_num(torch.inf).max()):g}"
            )


def refuse_gap(step: AggregationStep, gap: Tensor, limit: Tensor, what: str) -> None:
    """Raise `PluginFailure` if a gap exceeds its limit.

    Only the plugin's report says how far each client moved the model.
    """
    if not (gap <= limit).all():
        who = PluginMethod("aggregator", step, answer_method(step))
        raise PluginFailure(
            f"{who}: what it reports is not what it did: {what} is missed by up to "
            f"{float(gap.nan_to_num(torch.inf).max()):.3g}: report the weights that were used, and the rest as `offset`"
        )


def mix(mixing: Tensor, rows: Tensor, offset: Tensor | None) -> Tensor:
    """Return `mixing @ rows + offset`.

    A vector stands for a diagonal matrix.
    """
    product = mixing[:, None] * rows if mixing.ndim == 1 else mixing @ rows
    return product if offset is None else product.add_(offset)


def tolerance(terms: int, values: Tensor) -> float:
    """Return the relative rounding of two sums of this many terms.

    It is gamma_k, for sums in any order.
    """
    rounded = (2 * terms + 16) * torch.finfo(values.dtype).eps / 2
    return rounded / (1.0 - rounded)


def column_blocks(values: Tensor) -> Iterator[slice]:
    """Yield the columns of (n, P) values in blocks.

    Each block has all rows.
    """
    width = max(512, CHECKED_NUMBERS_AT_ONCE // max(1, len(values)))
    return (slice(first, first + width) for first in range(0, values.shape[1], width))


def check_shapes(
    step: AggregationStep, answer: object, expected: Mapping[str, Shapes], updates: tuple[int, int]
) -> None:
    """Raise `PluginFailure` unless an answer's tensors have allowed shapes.

    `expected` has the shapes that the contract allows.
    """
    for name, shapes in expected.items():
        found = getattr(answer, name)
        if found is None and name == "offset":
            continue
        who = PluginMethod("aggregator", step, answer_method(step))
        expected_shapes = " or ".join(map(str, shapes))
        if not isinstance(found, Tensor):
            raise PluginFailure(
                f"{who} returned {name} as {type(found).__name__}: expected a torch.Tensor of shape {expected_shapes}"
            )
        if tuple(found.shape) not in shapes:
            raise PluginFailure(
                f"{who} returned {name} of shape {tuple(found.shape)} for updates {updates}: expected {expected_shapes}"
            )
        refuse_gradient(who, name, found)
