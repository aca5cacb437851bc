"""Chain of an aggregation: stages, then a rule, run on all updates of a round, with the weights p_i on clients.

Every answer of a step is checked, see `aggregator_contract`; `effective_weights` composes mixings and offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.plugin_api.aggregator import (
    AggregationStep,
    Aggregator,
    CapStage,
    FixedStage,
    Stage,
    caps_residuals,
    chain_dependence,
    is_linear_chain,
    mix_clients,
    state_key,
)
from crfl_core.records.round import ClientUpdates, Dependence, RuleResult, State
from crfl_core.training import aggregator_contract as contract
from crfl_core.training.effective_weights import (
    cap_factors,
    compose_mixing,
    compose_offset,
    express_on_clients,
    offset_of_aggregate,
    row_blocks,
    row_norms,
    weights_on_clients,
)

if TYPE_CHECKING:
    from crfl_core.training.groups import FixedAnswers

States = Mapping[str, State]
"""The states of the steps of a chain and of the server's optimiser, by their keys."""


@dataclass(frozen=True)
class ChainResult:
    """Aggregate of a round in terms of what each of the n clients submitted: `update = sum_i p_i u_i + offset`.

    `weights` are the p_i that reached the model; `weight_bound` are the same with every factor of a cap set to 1. `cap`
    is the norm that the chain enforced on each client's residual, infinite if none, and `residual` its norm before it.
    `rounding` bounds the norm of what floating-point sums may have added. `rule` is the answer of a rule that looked at
    the updates, `reported` the same in terms of clients. `keeps_bounds`: no stage can make an honest residual longer.
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

    @staticmethod
    def without_change(clients: int, model: Tensor, states: States) -> ChainResult:
        """Return the result of a round in which no update reached the model."""
        zeros = torch.zeros(clients, dtype=torch.float64)
        return ChainResult(
            update=torch.zeros_like(model),
            weights=zeros,
            weight_bound=zeros,
            cap=torch.full_like(zeros, torch.inf),
            residual=zeros,
            depends="all",
            states=states,
        )


def run_chain(
    steps: Sequence[AggregationStep], updates: ClientUpdates, states: States, answers: FixedAnswers | None = None
) -> ChainResult:
    """Run a chain on all updates of a round: `update = sum_i p_i u_i + offset`, with the p_i that reached the model.

    With `answers`, steps that see no update answer as before.
    """
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
        fresh = position > 0 and isinstance(steps[position - 1], CapStage | FixedStage)  # made here, so not needed
        staged = apply_stage(stage, updates, states.get(state_key(position), {}), answers, in_place=fresh)
        if stage.depends == "all":
            contract.check_identity(stage, staged.values, staged.mixing, updates.values, staged.offset)
        errors = staged.errors(errors, lengths, start)
        mixing = compose_mixing(staged.mixing, mixing)
        if stage.depends != "own":
            bound = compose_mixing(staged.mixing, bound)
        offset = compose_offset(staged.mixing, offset, staged.offset)
        pull = compose_offset(staged.mixing, pull, staged.pull)
        if isinstance(stage, CapStage):
            keeps_bounds = keeps_bounds and caps_residuals(stage, clients)
            if bound is None and caps_residuals(stage, clients) and staged.cap is not None:  # else it caps mixtures
                cap = torch.minimum(cap, staged.cap)
        new_states[state_key(position)] = staged.state
        next_clients = mix_clients(updates.round.clients, staged.mixing)
        updates = ClientUpdates(staged.values, replace(updates.round, clients=next_clients))
    rule = steps[-1]
    rule_key = state_key(len(steps) - 1)
    assert isinstance(rule, Aggregator)
    answer = contract.ask_aggregate(rule, updates, states.get(rule_key, {}), answers)
    contract.check_weights(rule, answer, updates.values)
    new_states[rule_key] = answer.state
    shares = answer.weights.double().cpu()
    stage_offset = None if offset is None else offset_of_aggregate(answer, offset)
    pulled = None if pull is None else offset_of_aggregate(answer, pull) * start.to(submitted)
    reported = express_on_clients(answer, mixing, stage_offset, pulled)
    rounded = errors + contract.tolerance(len(shares), submitted) * row_norms(updates.values)
    return ChainResult(
        update=reported.update,
        weights=reported.weights.double().cpu(),
        weight_bound=weights_on_clients(shares, bound),
        cap=cap,
        residual=row_norms(submitted, start, torch.from_numpy(1.0 - clients.retention)),
        depends=chain_dependence(steps, clients),
        states=new_states,
        rounding=float(shares.abs() @ rounded),
        has_offset=reported.offset is not None,
        rule=answer,
        reported=reported,
        keeps_bounds=keeps_bounds,
    )


@dataclass(frozen=True)
class AppliedStage:
    """Updates behind a stage, as `values = mixing @ updates + offset`; `cap` if the stage enforced one.

    A cap under weight decay adds a part `pull`, (n, 1), of the broadcast model to each row, as its whole offset.
    """

    values: Tensor
    mixing: Tensor
    offset: Tensor | None
    state: State
    cap: Tensor | None = None
    pull: Tensor | None = None

    def errors(self, before: Tensor, lengths: Tensor, start: Tensor) -> Tensor:
        """Return how far rounding may have moved each row, (m,), float64.

        It had moved the rows that went in, of these `lengths`, by up to `before`.
        """
        terms = 1 if self.mixing.ndim == 1 else self.mixing.shape[1]
        tolerance = contract.tolerance(terms, self.values)
        sizes = (before + tolerance * lengths)[:, None]
        moved = contract.mix(self.mixing.double().cpu().abs(), sizes, None)[:, 0]
        if self.pull is not None:
            moved = moved + tolerance * row_norms(self.pull) * row_norms(start)
        return moved if self.offset is None else moved + tolerance * row_norms(self.offset)


def apply_stage(
    stage: Stage,
    updates: ClientUpdates,
    state: State,
    answers: FixedAnswers | None = None,
    *,
    in_place: bool = False,
) -> AppliedStage:
    """Apply a stage to the updates. The core itself applies caps and fixed mixings, `in_place` if it may."""
    values = updates.values
    current = updates.round
    if isinstance(stage, CapStage):
        return apply_cap(stage, updates, state, answers, in_place=in_place)
    if isinstance(stage, FixedStage):
        mixing = contract.ask_mixing(stage, current.facts, answers)
        matrix = mixing.matrix.to(values)
        offset = None if mixing.offset is None else mixing.offset.to(values)
        moved = scale_rows(values, matrix, in_place=in_place) if matrix.ndim == 1 else matrix @ values
        return AppliedStage(moved if offset is None else moved.add_(offset), matrix, offset, state)
    result = contract.ask_transform(stage, updates, state)
    return AppliedStage(result.values, result.mixing, result.offset, result.state)


def apply_cap(
    stage: CapStage, updates: ClientUpdates, state: State, answers: FixedAnswers | None, *, in_place: bool
) -> AppliedStage:
    """Project every update on the ball of its cap, whose centre may be what weight decay does to the model."""
    values = updates.values
    current = updates.round
    cap = contract.ask_caps(stage, current.clients, answers)
    decay = torch.from_numpy(1.0 - current.clients.retention) if stage.centre == "decay" else None
    factors = cap_factors(cap.cpu(), row_norms(values, current.start, decay), values.dtype).to(values)
    pull: Tensor | None = None
    if decay is not None and decay.any():
        pull = ((factors - 1.0) * decay.to(values))[:, None]
        if not pull.any():
            pull = None
    moved = scale_rows(values, factors, in_place=in_place)
    if pull is not None:
        for rows in row_blocks(values):
            moved[rows] += pull[rows] * current.start.to(values)
    return AppliedStage(moved, factors, None, state, cap.cpu(), pull)


def scale_rows(values: Tensor, factors: Tensor, *, in_place: bool) -> Tensor:
    """Return `factors[i] values[i]`; only the result has the size of the updates."""
    return torch.mul(values, factors[:, None], out=values if in_place else None)


def hides_quarantined(steps: Sequence[AggregationStep], quarantined: NDArray[np.bool_], *, drop: bool) -> bool:
    """Ask whether a chain runs without quarantined updates: the config drops them, or the chain would look at them."""
    return bool(quarantined.any()) and not quarantined.all() and (drop or not is_linear_chain(steps))


def drop_quarantined(updates: ClientUpdates, quarantined: NDArray[np.bool_]) -> ClientUpdates:
    """Return the updates that are not quarantined."""
    rows = np.flatnonzero(~quarantined)
    current = replace(updates.round, clients=updates.round.clients.take(rows))
    values = torch.index_select(updates.values, 0, torch.from_numpy(rows).to(updates.values.device))
    return ClientUpdates(values, current)


def restore_clients(result: ChainResult, kept: NDArray[np.bool_]) -> ChainResult:
    """Return the result with a 0 for each participant that the chain did not see."""

    def restore(values: Tensor) -> Tensor:
        all_values = values.new_zeros(len(kept))
        all_values[torch.from_numpy(kept)] = values
        return all_values

    return replace(
        result,
        weights=restore(result.weights),
        weight_bound=restore(result.weight_bound),
        cap=restore(result.cap),
        residual=restore(result.residual),
    )
