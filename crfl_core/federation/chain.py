"""The aggregation chain of a round: stages, then a rule, and the weights that come out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from crfl_core.errors import PluginFailure, failures_named
from crfl_core.kinds.aggregator import AggregationStep, Aggregator, LinearAggregator, Stage, state_key
from crfl_core.updates import Clients, ClientUpdates, Dependence, Round, RuleResult, StageResult, State, worst

States = Mapping[str, State]


@dataclass(frozen=True)
class ChainResult:
    """What a chain made of the updates: `aggregate` is in terms of what the clients submitted.

    `weight_bound` are the weights with every factor of an "own" stage set to 1; `cap` the norm that the chain enforced
    on each client's update, infinite if none. `keeps_bounds`: no stage can make an honest residual longer than it was
    (see `StageResult`), which an "own" stage promises with its cap.
    """

    aggregate: RuleResult
    weight_bound: Tensor
    cap: Tensor
    depends: Dependence
    states: States
    keeps_bounds: bool


def dependence(steps: Sequence[AggregationStep]) -> Dependence:
    """On what the weights of a chain depend.

    Behind a stage that may mix clients, an "own" factor is a mixture's own: it depends on everybody in it.
    """
    *stages, rule = steps
    chain: Dependence = "fixed" if isinstance(rule, LinearAggregator) else "all"
    mixed = False
    for stage in stages:
        chain = worst(chain, "all" if mixed and stage.depends == "own" else stage.depends)
        mixed = mixed or stage.depends != "own"
    return chain


def combine(steps: Sequence[AggregationStep], updates: ClientUpdates, states: States) -> ChainResult:
    """Run a chain: `aggregate = sum_i p_i u_i + offset`, with the p_i that reached the global model."""
    submitted = updates.values
    mixing: Tensor | None = None
    bound: Tensor | None = None
    offset: Tensor | None = None
    cap = submitted.new_full((len(submitted),), torch.inf)
    depends, keeps_bounds = dependence(steps), True
    new_states: dict[str, State] = {}
    for position, step in enumerate(steps[:-1]):
        assert isinstance(step, Stage)
        staged = call_stage(step, updates, states.get(state_key(position), {}))
        mixing = followed_by(mixing, staged)
        bound = bound if step.depends == "own" else followed_by(bound, staged)
        offset = None if offset is None else staged.mix(offset)
        if staged.offset is not None:
            offset = staged.offset if offset is None else offset + staged.offset
        if staged.cap is None:
            # Without a cap nothing says that honest updates pass unshrunk, as certificates for "own" need it.
            depends = "all" if step.depends == "own" else depends
            keeps_bounds = keeps_bounds and step.depends != "own"
        elif bound is None:  # behind a mixing stage it would cap mixtures, not clients
            cap = torch.minimum(cap, staged.cap.to(cap))
        new_states[state_key(position)] = staged.state
        updates = ClientUpdates(staged.values, after(updates.round, staged))
    rule = steps[-1]
    assert isinstance(rule, Aggregator)
    last = state_key(len(steps) - 1)
    aggregate = call_rule(rule, updates, states.get(last, {}))
    new_states[last] = aggregate.state
    return ChainResult(
        aggregate=in_terms_of_clients(aggregate, mixing, offset),
        weight_bound=aggregate.weights if bound is None else weighted(aggregate.weights, bound),
        cap=cap,
        depends=depends,
        states=new_states,
        keeps_bounds=keeps_bounds,
    )


def in_terms_of_clients(aggregate: RuleResult, mixing: Tensor | None, offset: Tensor | None) -> RuleResult:
    """The aggregate with weights on the submitted instead of the staged updates."""
    if mixing is None and offset is None:
        return aggregate
    full = aggregate.full_weights
    total = aggregate.offset
    if offset is not None:
        staged = aggregate.weights.to(offset) @ offset if full is None else (full() * offset).sum(0)
        total = staged if total is None else total + staged
    weights = aggregate.weights if mixing is None else weighted(aggregate.weights, mixing)
    if full is not None and mixing is not None:
        stage_mixing, staged_weights = mixing, full
        return replace(
            aggregate, weights=weights, offset=total, full_weights=lambda: spread(stage_mixing, staged_weights())
        )
    return replace(aggregate, weights=weights, offset=total)


def followed_by(mixing: Tensor | None, staged: StageResult) -> Tensor:
    """The mixing of all stages so far; diagonal ones stay vectors, so that many clients need no square matrix."""
    if mixing is None:
        return staged.mixing
    return staged.mixing * mixing if staged.mixing.ndim == mixing.ndim == 1 else staged.mix(dense(mixing))


def dense(mixing: Tensor) -> Tensor:
    """A mixing as a matrix."""
    return mixing.diag() if mixing.ndim == 1 else mixing


def weighted(weights: Tensor, mixing: Tensor) -> Tensor:
    """Weights of staged updates as weights of the updates that they were made of."""
    return weights * mixing.to(weights) if mixing.ndim == 1 else weights @ mixing.to(weights)


def spread(mixing: Tensor, full_weights: Tensor) -> Tensor:
    """The same for weights of every parameter, (m, P) -> (n, P)."""
    return mixing[:, None] * full_weights if mixing.ndim == 1 else mixing.T @ full_weights


def call_stage(stage: Stage, updates: ClientUpdates, state: State) -> StageResult:
    """A stage's answer, with its shapes checked."""
    with_name = f"aggregation stage {stage.full_name}"
    with failures_named(f"{with_name} failed"):
        staged = stage.transform(updates, state)
    clients, size = updates.values.shape
    rows = len(staged.values)
    mixing = (rows,) if staged.mixing.ndim == 1 and rows == clients else (rows, clients)
    shapes = {"values": (rows, size), "mixing": mixing, "offset": (rows, size), "cap": (rows,)}
    check_shapes(with_name, staged, shapes, updates)
    return staged


def call_rule(rule: Aggregator, updates: ClientUpdates, state: State) -> RuleResult:
    """A rule's answer, checked: right shapes, finite."""
    with_name = f"aggregator {rule.full_name}"
    with failures_named(f"{with_name} failed"):
        aggregate = rule.aggregate(updates, state)
    clients, size = updates.values.shape
    check_shapes(with_name, aggregate, {"update": (size,), "weights": (clients,), "offset": (size,)}, updates)
    if not (torch.isfinite(aggregate.update).all() and torch.isfinite(aggregate.weights).all()):
        raise PluginFailure(f"{with_name} returned a non-finite update or weights for finite updates")
    return aggregate


def check_shapes(
    who: str, answer: StageResult | RuleResult, expected: Mapping[str, tuple[int, ...]], updates: ClientUpdates
) -> None:
    """Every tensor that a plugin answered with has the shape that its contract says."""
    for name, shape in expected.items():
        found: Tensor | None = getattr(answer, name)
        if found is not None and found.shape != shape:
            raise PluginFailure(
                f"{who} returned {name} of shape {tuple(found.shape)} for updates {tuple(updates.values.shape)}: "
                f"expected {shape}"
            )


def after(current: Round, staged: StageResult) -> Round:
    """The round as the next step sees it: a stage that mixes clients makes new ones, averages of the old.

    Samples, retention and the bound on honest updates are averaged as the updates are, so that weights by sample counts
    and caps still mean the same. In everything else, and in its id, a row stays who it was if there are as many rows as
    before, and is the client that it is mostly made of if not.
    """
    mixing = staged.mixing
    if mixing.ndim == 1:
        return current
    if mixing.shape[0] == mixing.shape[1] and torch.equal(mixing, torch.diag(mixing.diagonal())):
        return current
    old, share = current.clients, mixing.abs().double().cpu().numpy()
    share /= np.maximum(share.sum(1, keepdims=True), np.finfo(np.float64).tiny)
    known = np.isfinite(old.update_bound).all()
    averaged = {
        # Rounded twice: a half must not go up or down with the order in which it was summed.
        "samples": np.maximum(1, (share @ old.samples).round(9).round()).astype(np.int64),
        "retention": share @ old.retention,
        "update_bound": share @ old.update_bound if known else np.full(len(share), np.inf),
    }
    if len(share) != len(old):
        by_id = np.argsort(old.ids)  # of equal parts the lowest id counts, in whatever order the rows come
        old = old.take(by_id[share[:, by_id].argmax(1)])
    return replace(current, clients=Clients(**(vars(old) | averaged)))
