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
        """Return a round's result when no update reached the model."""
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
    """Run a chain on all updates of a round.

    The result satisfies `update = sum_i p_i u_i + offset`, with the p_i that reached the model. With `answers`, steps
    that see no update answer as before.
    """
    *stages, rule = steps
    assert isinstance(rule, Aggregator)
    new_states: dict[str, State] = {}
    staged = StagedUpdates(updates)
    for position, stage in enumerate(stages):
        assert isinstance(stage, Stage)
        key = state_key(position)
        new_states[key] = staged.apply(stage, states.get(key, {}), answers)
    key = state_key(len(stages))
    answer = contract.ask_aggregate(rule, staged.updates, states.get(key, {}), answers)
    contract.check_weights(rule, answer, staged.updates.values)
    new_states[key] = answer.state
    reported = staged.express_on_clients(answer)
    shares = answer.weights.double().cpu()
    clients = updates.round.clients
    return ChainResult(
        update=reported.update,
        weights=reported.weights.double().cpu(),
        weight_bound=weights_on_clients(shares, staged.mixing_without_caps),
        cap=staged.cap,
        residual=row_norms(updates.values, updates.round.start, torch.from_numpy(1.0 - clients.retention)),
        depends=chain_dependence(steps, clients),
        states=new_states,
        rounding=staged.rounding_of(shares),
        has_offset=reported.offset is not None,
        rule=answer,
        reported=reported,
        keeps_bounds=staged.keeps_bounds,
    )


class StagedUpdates:
    """Updates on their way through the stages, and how they follow from what the n clients submitted.

    The m rows of `updates` are `mixing @ submitted + offset + pull w` for the broadcast model w; None stands for what
    no stage has changed so far. `mixing_without_caps` has every factor of a cap set to 1. `cap` is the least norm that
    was enforced on each client's residual, `errors` bounds how far rounding has moved each row, and `keeps_bounds` is
    as in `ChainResult`.
    """

    def __init__(self, submitted: ClientUpdates) -> None:
        rows = len(submitted.values)
        self.updates = submitted
        self.mixing: Tensor | None = None
        self.mixing_without_caps: Tensor | None = None
        self.offset: Tensor | None = None
        self.pull: Tensor | None = None
        self.cap = torch.full((rows,), torch.inf, dtype=torch.float64)
        self.errors = torch.zeros(rows, dtype=torch.float64)
        self.keeps_bounds = True
        self._clients = submitted.round.clients
        self._is_own_copy = False

    def apply(self, stage: Stage, state: State, answers: FixedAnswers | None) -> State:
        """Apply the next stage and check what it reports.

        Return its state for the next round.
        """
        updates = self.updates
        lengths = row_norms(updates.values)
        applied = apply_stage(stage, updates, state, answers, in_place=self._is_own_copy)
        if stage.depends == "all":
            contract.check_identity(stage, applied.values, applied.mixing, updates.values, applied.offset)
        self.errors = applied.errors(self.errors, lengths, updates.round.start)
        self.mixing = compose_mixing(applied.mixing, self.mixing)
        self.offset = compose_offset(applied.mixing, self.offset, applied.offset)
        self.pull = compose_offset(applied.mixing, self.pull, applied.pull)
        if stage.depends != "own":
            self.mixing_without_caps = compose_mixing(applied.mixing, self.mixing_without_caps)
        if isinstance(stage, CapStage):
            self._note_cap(stage, applied.cap)
        clients = mix_clients(updates.round.clients, applied.mixing)
        self.updates = ClientUpdates(applied.values, replace(updates.round, clients=clients))
        self._is_own_copy = isinstance(stage, CapStage | FixedStage)  # the core made these rows, and only it has them
        return applied.state

    def _note_cap(self, stage: CapStage, cap: Tensor | None) -> None:
        """Note what a cap enforced.

        A cap behind a mixing bounds mixtures, not a client's own residual.
        """
        caps_own = caps_residuals(stage, self._clients)
        self.keeps_bounds = self.keeps_bounds and caps_own
        if caps_own and cap is not None and self.mixing_without_caps is None:
            self.cap = torch.minimum(self.cap, cap)

    def express_on_clients(self, answer: RuleResult) -> RuleResult:
        """Return a rule's answer with weights on the submitted updates.

        The given answer is about the staged rows.
        """
        offset = None if self.offset is None else offset_of_aggregate(answer, self.offset)
        pulled = None
        if self.pull is not None:
            pulled = offset_of_aggregate(answer, self.pull) * self.updates.round.start.to(self.updates.values)
        return express_on_clients(answer, self.mixing, offset, pulled)

    def rounding_of(self, shares: Tensor) -> float:
        """Bound how far rounding moves the weighted sum of the rows.

        `shares`, (m,), are the weights.
        """
        values = self.updates.values
        return float(shares.abs() @ (self.errors + contract.tolerance(len(shares), values) * row_norms(values)))


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
    """Apply a stage to the updates.

    The core itself applies caps and fixed mixings, `in_place` if it may.
    """
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
    """Project every update on the ball of its cap.

    The centre may be what weight decay does to the model.
    """
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
    """Ask whether a chain runs without quarantined updates.

    It does if the config drops them, or if the chain would look at them.
    """
    return bool(quarantined.any()) and not quarantined.all() and (drop or not is_linear_chain(steps))


def drop_quarantined(updates: ClientUpdates, quarantined: NDArray[np.bool_]) -> ClientUpdates:
    """Return the updates that are not quarantined."""
    rows = np.flatnonzero(~quarantined)
    current = replace(updates.round, clients=updates.round.clients.take(rows))
    values = torch.index_select(updates.values, 0, torch.from_numpy(rows).to(updates.values.device))
    return ClientUpdates(values, current)


def restore_clients(result: ChainResult, kept: NDArray[np.bool_]) -> ChainResult:
    """Return the result with entries for all participants.

    A participant that the chain did not see gets a 0.
    """

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
