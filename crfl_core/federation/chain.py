"""The aggregation chain of a round: stages, then a rule, and the weights that come out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from crfl_core.errors import CrflError, PluginFailure
from crfl_core.kinds.aggregator import AggregationStep, Aggregator, LinearAggregator, Stage
from crfl_core.updates import Aggregate, Clients, ClientUpdates, Dependence, Round, Staged, State, worst

States = Mapping[str, State]


@dataclass(frozen=True)
class Combined:
    """What a chain made of the updates: `aggregate` is in terms of what the clients submitted.

    `weight_bound` are the weights with every factor of an "own" stage set to 1; `cap` the norm that the chain enforced
    on each client's update, infinite if none.
    """

    aggregate: Aggregate
    weight_bound: Tensor
    cap: Tensor
    depends: Dependence
    states: States


def dependence(steps: Sequence[AggregationStep]) -> Dependence:
    """On what the weights of a chain depend."""
    *stages, rule = steps
    own_rule: Dependence = "fixed" if isinstance(rule, LinearAggregator) else "all"
    return worst(own_rule, *(stage.depends for stage in stages))


def combine(steps: Sequence[AggregationStep], updates: ClientUpdates, states: States) -> Combined:
    """Run a chain: `aggregate = sum_i p_i u_i + offset`, with the p_i that reached the global model."""
    submitted = updates.values
    mixing: Tensor | None = None
    bound: Tensor | None = None
    offset: Tensor | None = None
    cap = submitted.new_full((len(submitted),), torch.inf)
    new_states: dict[str, State] = {}
    for position, step in enumerate(steps[:-1]):
        assert isinstance(step, Stage)
        staged = call_stage(step, updates, states.get(state_key(position), {}))
        factor = None if step.depends == "own" else staged.mixing
        mixing = staged.mixing if mixing is None else staged.mixing @ mixing
        bound = factor if bound is None else bound if factor is None else factor @ bound
        offset = None if offset is None else staged.mixing @ offset
        if staged.offset is not None:
            offset = staged.offset if offset is None else offset + staged.offset
        if staged.cap is not None and len(staged.cap) == len(cap):
            cap = torch.minimum(cap, staged.cap.to(cap))
        new_states[state_key(position)] = staged.state
        updates = ClientUpdates(staged.values, after(updates.round, staged))
    rule = steps[-1]
    assert isinstance(rule, Aggregator)
    last = state_key(len(steps) - 1)
    aggregate = call_rule(rule, updates, states.get(last, {}))
    new_states[last] = aggregate.state
    return Combined(
        aggregate=in_terms_of_clients(aggregate, mixing, offset, submitted),
        weight_bound=aggregate.weights if bound is None else aggregate.weights @ bound,
        cap=cap,
        depends=dependence(steps),
        states=new_states,
    )


def state_key(position: int) -> str:
    """The name of a step's state in the checkpoint."""
    return f"aggregation.{position}"


def in_terms_of_clients(
    aggregate: Aggregate, mixing: Tensor | None, offset: Tensor | None, submitted: Tensor
) -> Aggregate:
    """The aggregate with weights on the submitted instead of the staged updates."""
    if mixing is None and offset is None:
        return aggregate
    full = aggregate.full_weights
    total = aggregate.offset
    if offset is not None:
        staged = aggregate.weights @ offset if full is None else (full() * offset).sum(0)
        total = staged if total is None else total + staged
    weights = aggregate.weights if mixing is None else aggregate.weights @ mixing
    if full is not None and mixing is not None:
        stage_mixing, staged_weights = mixing, full
        return replace(aggregate, weights=weights, offset=total, full_weights=lambda: stage_mixing.T @ staged_weights())
    return replace(aggregate, weights=weights.to(submitted), offset=total)


def call_stage(stage: Stage, updates: ClientUpdates, state: State) -> Staged:
    """A stage's answer, with its shapes checked."""
    with_name = f"aggregation stage {stage.configured_as!r}"
    try:
        staged = stage.transform(updates, state)
    except CrflError:
        raise
    except Exception as error:
        raise PluginFailure(f"{with_name} failed: {type(error).__name__}: {error}") from error
    rows, size = staged.values.shape
    if size != updates.values.shape[1] or staged.mixing.shape != (rows, len(updates.values)):
        raise PluginFailure(
            f"{with_name} returned values {tuple(staged.values.shape)} with mixing {tuple(staged.mixing.shape)} for "
            f"updates {tuple(updates.values.shape)}: values = mixing @ updates + offset must be possible"
        )
    return staged


def call_rule(rule: Aggregator, updates: ClientUpdates, state: State) -> Aggregate:
    """A rule's answer, checked: right shapes, finite."""
    with_name = f"aggregator {rule.configured_as!r}"
    try:
        aggregate = rule.aggregate(updates, state)
    except CrflError:
        raise
    except Exception as error:
        raise PluginFailure(f"{with_name} failed: {type(error).__name__}: {error}") from error
    clients, size = updates.values.shape
    if aggregate.update.shape != (size,) or aggregate.weights.shape != (clients,):
        raise PluginFailure(
            f"{with_name} returned an update {tuple(aggregate.update.shape)} with weights "
            f"{tuple(aggregate.weights.shape)} for updates ({clients}, {size}): expected ({size},) and ({clients},)"
        )
    if not (torch.isfinite(aggregate.update).all() and torch.isfinite(aggregate.weights).all()):
        raise PluginFailure(f"{with_name} returned a non-finite update or weights for finite updates")
    return aggregate


def after(round: Round, staged: Staged) -> Round:
    """The round as the next step sees it: a stage that merges clients makes new ones, averages of the old.

    A merged client holds the mean number of samples of those it was made of, so that weights by sample counts still
    mean the same.
    """
    rows, clients = staged.mixing.shape
    if rows == clients:
        return round
    old = round.clients
    share = staged.mixing.abs()
    samples = (share / share.sum(1, keepdim=True)).double().cpu().numpy() @ old.samples
    merged = old.take(np.zeros(rows, np.int64))
    ids, counts = np.arange(rows), np.maximum(1, samples.round()).astype(np.int64)
    return replace(round, clients=Clients(**(vars(merged) | {"ids": ids, "samples": counts})))
