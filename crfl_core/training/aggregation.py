"""The aggregation chain of a round: stages, then a rule, and the weights that come out of it.

Chains of caps, fixed stages and a linear rule are linear in the capped updates: `LinearChain` has all that the server
needs to add updates up as they arrive. Any other chain needs all of them at once: `run_chain`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from crfl_core.plugin_api.aggregator import (
    AggregationStep,
    Aggregator,
    CapStage,
    FixedStage,
    LinearAggregator,
    Stage,
    caps_residuals,
    chain_dependence,
    mix_clients,
    state_key,
)
from crfl_core.records.round import ClientUpdates, Dependence, RoundFacts, RuleResult, State
from crfl_core.training import aggregator_contract as answers
from crfl_core.training.update_memory import new_rows

States = Mapping[str, State]
PIECE = 512
"""Norms are taken of pieces this long in the precision of the updates, and put together in double precision."""


@dataclass(frozen=True)
class ChainResult:
    """What a chain made of the updates of a round, in terms of what each of the n clients submitted.

    `weights` reached the model; `weight_bound` are the same with every factor of a cap set to 1. `cap` is the norm that
    the chain enforced on each client's residual, infinite if none, and `residual` its norm before it. `rounding`
    bounds the norm of what floating-point sums may have added. `rule` is the answer of a rule that looked at the
    updates, `reported` the same in terms of clients. `keeps_bounds`: no stage can make an honest residual longer.
    `server_rate` is what the server's optimiser has multiplied the update by, None if it did something else; `notes`
    are for the ledger.
    """

    update: Tensor
    weights: Tensor
    weight_bound: Tensor
    cap: Tensor
    residual: Tensor
    depends: Dependence
    states: States = field(default_factory=dict)
    rounding: float = 0.0
    has_offset: bool = False
    rule: RuleResult | None = None
    reported: RuleResult | None = None
    keeps_bounds: bool = True
    weights_from: str = "chain"
    server_rate: float | None = 1.0
    notes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LinearChain:
    """A chain that is linear in capped updates: `aggregate = sum_i weights[i] cap_i(u_i) + offset`.

    `decay` is 1 - retention. `balls` are the caps in turn, each with what of the model w is its centre: `decay` if it
    caps residuals `u + decay w`, 0 if updates. `caps` are the least on residuals, infinite if there is none.
    """

    weights: Tensor
    caps: Tensor
    balls: tuple[tuple[Tensor, Tensor], ...]
    decay: Tensor
    offset: Tensor | None
    depends: Dependence
    keeps_bounds: bool

    @staticmethod
    def of(steps: Sequence[AggregationStep], facts: RoundFacts) -> LinearChain:
        """The chain of a round, whose steps see nothing but its facts."""
        *stages, rule = steps
        clients = facts.clients
        decay = torch.from_numpy(1.0 - facts.clients.retention)
        caps = torch.full_like(decay, torch.inf)
        balls: list[tuple[Tensor, Tensor]] = []
        matrix: Tensor | None = None
        offset: Tensor | None = None
        for stage in stages:
            if isinstance(stage, CapStage):
                cap = answers.caps_of(stage, clients).cpu()
                centre = decay if caps_residuals(stage, clients) else decay * 0.0
                if caps_residuals(stage, clients):
                    caps = torch.minimum(caps, cap)
                if balls and torch.equal(balls[-1][1], centre):  # of two balls around one centre the smaller counts
                    cap = torch.minimum(cap, balls.pop()[0])
                balls.append((cap, centre))
                continue
            assert isinstance(stage, FixedStage)
            mixing = answers.mixing_of(stage, replace(facts, clients=clients))
            matrix = composed(mixing.matrix.double().cpu(), matrix)
            offset = shifted(mixing.matrix, offset, mixing.offset)
            clients = mix_clients(clients, mixing.matrix)
        assert isinstance(rule, LinearAggregator)
        weights = answers.weights_of(rule, clients).cpu()
        return LinearChain(
            weights=weighted(weights, matrix),
            caps=caps,
            balls=tuple(balls),
            decay=decay,
            offset=None if offset is None else summed(weights, offset),
            depends=chain_dependence(steps, facts.clients),
            keeps_bounds=all(caps_residuals(one, facts.clients) for one in stages if isinstance(one, CapStage)),
        )


def run_chain(steps: Sequence[AggregationStep], updates: ClientUpdates, states: States) -> ChainResult:
    """Run a chain on all updates of a round: `update = sum_i p_i u_i + offset`, with the p_i that reached the model."""
    submitted = updates.values
    clients = updates.round.clients
    start = updates.round.start
    mixing: Tensor | None = None
    bound: Tensor | None = None
    offset: Tensor | None = None
    pull: Tensor | None = None
    cap = torch.full((len(submitted),), torch.inf, dtype=torch.float64)
    errors = torch.zeros(len(submitted), dtype=torch.float64)
    keeps_bounds = True
    new_states: dict[str, State] = {}
    for position, stage in enumerate(steps[:-1]):
        assert isinstance(stage, Stage)
        lengths = row_norms(updates.values)
        ours = isinstance(steps[max(0, position - 1)], CapStage | FixedStage)
        staged = staged_by(stage, updates, states.get(state_key(position), {}), in_place=ours and position > 0)
        if stage.depends == "all":
            answers.check_identity(stage, staged.values, staged.mixing, updates.values, staged.offset)
        errors = staged.errors(errors, lengths, start)
        mixing = composed(staged.mixing, mixing)
        bound = bound if stage.depends == "own" else composed(staged.mixing, bound)
        offset = shifted(staged.mixing, offset, staged.offset)
        pull = shifted(staged.mixing, pull, staged.pull)
        if isinstance(stage, CapStage):
            keeps_bounds = keeps_bounds and caps_residuals(stage, clients)
            if bound is None and caps_residuals(stage, clients) and staged.cap is not None:  # else it caps mixtures
                cap = torch.minimum(cap, staged.cap)
        new_states[state_key(position)] = staged.state
        updates = ClientUpdates(
            staged.values, replace(updates.round, clients=mix_clients(updates.round.clients, staged.mixing))
        )
    rule = steps[-1]
    last = state_key(len(steps) - 1)
    assert isinstance(rule, Aggregator)
    answer = answers.combined(rule, updates, states.get(last, {}))
    answers.check_weights(rule, answer, updates.values)
    new_states[last] = answer.state
    shares = answer.weights.double().cpu()
    pulled = None if pull is None else total_offset(answer, pull) * start.to(submitted)
    found = in_terms_of_clients(answer, mixing, None if offset is None else total_offset(answer, offset), pulled)
    residual = row_norms(submitted, start, torch.from_numpy(1.0 - clients.retention))
    rounding = float(shares.abs() @ (errors + answers.tolerance(len(shares), submitted) * row_norms(updates.values)))
    return ChainResult(
        update=found.update,
        weights=found.weights.double().cpu(),
        weight_bound=weighted(shares, bound),
        cap=cap,
        residual=residual,
        depends=chain_dependence(steps, clients),
        states=new_states,
        rounding=rounding,
        has_offset=found.offset is not None,
        rule=answer,
        reported=found,
        keeps_bounds=keeps_bounds,
    )


@dataclass(frozen=True)
class Staged:
    """The updates behind a stage, as `values = mixing @ updates + offset`; `cap` if the stage enforced one.

    A cap under weight decay adds a part `pull`, (n, 1), of the broadcast model to each row, as its whole offset.
    """

    values: Tensor
    mixing: Tensor
    offset: Tensor | None
    state: State
    cap: Tensor | None = None
    pull: Tensor | None = None

    def errors(self, before: Tensor, lengths: Tensor, start: Tensor) -> Tensor:
        """How far rounding may have moved each row, if it had moved those that went in, of these lengths, `before`."""
        terms = 1 if self.mixing.ndim == 1 else self.mixing.shape[1]
        own = answers.tolerance(terms, self.values)
        moved = answers.mixed(self.mixing.double().cpu().abs(), (before + own * lengths)[:, None], None)[:, 0]
        if self.pull is not None:
            moved = moved + own * row_norms(self.pull) * row_norms(start)
        return moved if self.offset is None else moved + own * row_norms(self.offset)


def staged_by(stage: Stage, updates: ClientUpdates, state: State, *, in_place: bool = False) -> Staged:
    """What a stage makes of the updates. Caps and fixed mixings are applied here, `in_place` if nobody needs them."""
    values = updates.values
    current = updates.round
    if isinstance(stage, CapStage):
        cap = answers.caps_of(stage, current.clients)
        decay = torch.from_numpy(1.0 - current.clients.retention) if stage.centre == "decay" else None
        factors = shrinkage(cap.cpu(), row_norms(values, current.start, decay), values.dtype).to(values)
        pull = None if decay is None or not decay.any() else ((factors - 1.0) * decay.to(values))[:, None]
        pull = None if pull is None or not pull.any() else pull
        moved = scaled(values, factors, in_place=in_place)
        if pull is not None:
            for rows in row_blocks(values):
                moved[rows] += pull[rows] * current.start.to(values)
        return Staged(moved, factors, None, state, cap.cpu(), pull)
    if isinstance(stage, FixedStage):
        mixing = answers.mixing_of(stage, current.facts)
        matrix = mixing.matrix.to(values)
        offset = None if mixing.offset is None else mixing.offset.to(values)
        moved = scaled(values, matrix, in_place=in_place) if matrix.ndim == 1 else matrix @ values
        return Staged(moved if offset is None else moved.add_(offset), matrix, offset, state)
    result = answers.transformed(stage, updates, state)
    return Staged(result.values, result.mixing, result.offset, result.state)


def scaled(values: Tensor, factors: Tensor, *, in_place: bool) -> Tensor:
    """`factors[i] values[i]`; nothing but the result has their size."""
    return torch.mul(values, factors[:, None], out=values if in_place else new_rows(values, *values.shape))


def in_terms_of_clients(result: RuleResult, mixing: Tensor | None, *offsets: Tensor | None) -> RuleResult:
    """The answer of a rule with weights on the submitted instead of the staged updates; `offsets` are of the stages."""
    found = [one for one in (result.offset, *offsets) if one is not None]
    if mixing is None and not found:
        return result
    full = result.full_weights
    total = sum(found[1:], found[0]) if found else None
    weights = weighted(result.weights, mixing)
    if full is not None and mixing is not None:
        stage_mixing = mixing
        staged_weights = full
        return replace(
            result, weights=weights, offset=total, full_weights=lambda: spread(stage_mixing, staged_weights())
        )
    return replace(result, weights=weights, offset=total)


def composed(mixing: Tensor, before: Tensor | None) -> Tensor:
    """The mixing of all stages so far; diagonal ones stay vectors, so that many clients need no square matrix."""
    if before is None:
        return mixing
    if mixing.ndim == before.ndim == 1:
        return mixing * before
    return answers.mixed(mixing.to(before), before.diag() if before.ndim == 1 else before, None)


def shifted(mixing: Tensor, before: Tensor | None, offset: Tensor | None) -> Tensor | None:
    """The offset of all stages so far: what was there, mixed, and what this one adds; (m, P), or (P,) for all rows."""
    if before is None:
        return offset
    if before.ndim == 1:  # the same for all rows: rows of the mixing say how much of it is left
        sums = mixing if mixing.ndim == 1 else mixing.sum(1)
        before = before if bool((sums == 1).all()) else torch.outer(sums.to(before), before)
    else:
        before = answers.mixed(mixing.to(before), before, None)
    return before if offset is None else before + offset


def total_offset(answer: RuleResult, offset: Tensor) -> Tensor:
    """What an offset of staged updates is in their aggregate."""
    if answer.full_weights is not None:
        return (answer.full_weights() * offset).sum(0)
    return summed(answer.weights, offset)


def summed(weights: Tensor, offset: Tensor) -> Tensor:
    """`sum_j weights[j] offset[j]`."""
    return float(weights.sum()) * offset if offset.ndim == 1 else weights.to(offset) @ offset


def weighted(weights: Tensor, mixing: Tensor | None) -> Tensor:
    """Weights of staged updates as weights of the updates that they were made of."""
    if mixing is None:
        return weights
    return weights * mixing.to(weights) if mixing.ndim == 1 else weights @ mixing.to(weights)


def spread(mixing: Tensor, full_weights: Tensor) -> Tensor:
    """The same for weights of every parameter, (m, P) -> (n, P)."""
    return mixing[:, None] * full_weights if mixing.ndim == 1 else mixing.T @ full_weights


def row_norms(values: Tensor, start: Tensor | None = None, decay: Tensor | None = None) -> Tensor:
    """The norms of the rows of (..., n, P), or of `values + decay start` with a share of the start per row; float64."""
    if start is not None and decay is not None and bool(decay.any()):
        shares = decay.to(values)[:, None]
        centre = start.to(values)
        return torch.cat([row_norms(values[..., rows, :] + shares[rows] * centre) for rows in row_blocks(values)], -1)
    pieces, rest = divmod(values.shape[-1], PIECE)
    head, tail = values.split([pieces * PIECE, rest], dim=-1)
    lengths = torch.linalg.vector_norm(head.unflatten(-1, (pieces, PIECE)), dim=-1)
    last = torch.linalg.vector_norm(tail, dim=-1, keepdim=True)
    total: Tensor = torch.linalg.vector_norm(torch.cat([lengths, last], dim=-1).double(), dim=-1)
    return total.cpu()


def row_blocks(values: Tensor) -> list[slice]:
    """The rows of (..., n, P) in blocks, each small enough for a copy."""
    *_, rows, size = values.shape
    at_once = max(1, answers.CHECKED_NUMBERS_AT_ONCE // max(1, size))
    return [slice(first, first + at_once) for first in range(0, rows, at_once)]


def shrinkage(cap: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
    """`min(1, cap / length)`, rounded down so that nothing ends up above its cap in this precision; float64."""
    factors = (cap / lengths) * (1 - 4 * torch.finfo(dtype).eps)
    normal = factors >= torch.finfo(dtype).tiny  # smaller ones would be rounded up as well as down
    return torch.where(lengths > cap, torch.where(normal, factors, 0.0), 1.0)
