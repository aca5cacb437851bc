"""Aggregation of a round: stages, then a rule, and the weights p_i with which each client entered.

A chain of caps, fixed stages and a linear rule is linear in the capped updates. `StreamedSums` adds them up as they
arrive, so memory does not grow with the number of clients. Any other chain needs all updates at once: `run_chain`.
Every answer of a step is checked, see `aggregator_contract`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core import resource_limits
from crfl_core.errors import ConfigError
from crfl_core.plugin_api.aggregator import (
    AggregationStep,
    Aggregator,
    CapStage,
    FixedStage,
    LinearAggregator,
    Stage,
    caps_residuals,
    chain_dependence,
    is_linear_chain,
    mix_clients,
    state_key,
)
from crfl_core.records.round import ClientUpdates, Dependence, RoundFacts, RuleResult, State, Submission
from crfl_core.training import aggregator_contract as contract
from crfl_core.training.attackers import crafts_from_others
from crfl_core.training.effective_weights import (
    cap_factors,
    compose_mixing,
    compose_offset,
    express_on_clients,
    offset_of_aggregate,
    row_blocks,
    row_norms,
    weigh_offset,
    weights_on_clients,
)

if TYPE_CHECKING:
    from crfl_core.training.session import RoundPlan, Session

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
    def standstill(clients: int, model: Tensor, states: States) -> ChainResult:
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


class Aggregation(Protocol):
    """Aggregation of one group: takes what arrives, and has a result for each model when everything has."""

    def add(self, submission: Submission) -> None:
        """Take the updates of some participants."""

    def results(self) -> tuple[ChainResult, ...]:
        """Return the aggregate for each model."""


def start_aggregation(session: Session, plan: RoundPlan, models: Tensor, states: Sequence[States]) -> Aggregation:
    """Start the aggregation of a group's round, streamed if its chain allows that."""
    if can_stream(session):
        return StreamedSums(plan, models, states)
    return WholeChain(session, plan, models, states)


def can_stream(session: Session) -> bool:
    """Ask whether updates can be added up as they arrive: the chain is linear, and bad updates keep their weight."""
    config = session.federation.config
    return (
        is_linear_chain(config.aggregation)
        and config.server.bad_update == "zero"
        and not session.hooks.replaces_weights
    )


def needs_all_updates(session: Session, plan: RoundPlan) -> bool:
    """Ask whether all updates must be there at once: for the chain, or for attackers who craft from the others'."""
    crafts = bool(plan.behaviour.attacking.any()) and crafts_from_others(session.federation.config.attack)
    return crafts or not can_stream(session)


def check_memory(session: Session) -> None:
    """Raise `ConfigError` if the updates that must be there at once cannot fit into memory. Called before round 1."""
    federation = session.federation
    crafts = crafts_from_others(federation.config.attack)
    if federation.device.type != "cpu" or (can_stream(session) and not crafts):
        return
    clients = len(federation.participation.participants(1))
    size = federation.model.layout.size
    check_updates_fit(federation.config.aggregation, clients, size, federation.dtype.itemsize, crafts=crafts)


def check_updates_fit(
    steps: Sequence[AggregationStep], clients: int, parameters: int, itemsize: int, *, crafts: bool
) -> None:
    """Raise `ConfigError` if the updates of a round cannot fit, with what they need at least and what is left."""
    needed = copies_in_memory(steps, crafts=crafts) * clients * parameters * itemsize
    room = resource_limits.read_free_memory()
    if room is not None and needed > room.left:
        chain = " + ".join(step.configured_as for step in steps)
        raise ConfigError(
            f"{chain} must see the updates of all {clients:,} participants at once: with {parameters:,} parameters "
            f"they take at least {needed / 1e9:,.1f} GB, and {room.left / 1e9:,.1f} GB are left ({room.limit}): lower "
            "training.participation, or use a mean behind stages that cap each update, which is added up as updates "
            "arrive",
            key="aggregation",
        )


def copies_in_memory(steps: Sequence[AggregationStep], *, crafts: bool) -> int:
    """Return how many copies of all updates a chain that looks at them keeps at least; `crafts`: attackers look, too.

    Every stage but a cap makes new updates, and attackers who craft replace rows of a copy that they may keep.
    """
    stages = sum(isinstance(step, Stage) and not isinstance(step, CapStage) for step in steps)
    return 1 + stages + 2 * crafts


@dataclass(frozen=True)
class LinearChain:
    """Chain that is linear in capped updates: `aggregate = sum_i weights[i] cap_i(u_i) + offset`.

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
        """Return the chain of a round, whose steps see nothing but the round's facts."""
        *stages, rule = steps
        clients = facts.clients
        decay = torch.from_numpy(1.0 - facts.clients.retention)
        caps = torch.full_like(decay, torch.inf)
        balls: list[tuple[Tensor, Tensor]] = []
        matrix: Tensor | None = None
        offset: Tensor | None = None
        for stage in stages:
            if isinstance(stage, CapStage):
                cap = contract.ask_caps(stage, clients).cpu()
                centre = decay if caps_residuals(stage, clients) else decay * 0.0
                if caps_residuals(stage, clients):
                    caps = torch.minimum(caps, cap)
                if balls and torch.equal(balls[-1][1], centre):  # of two balls around one centre the smaller counts
                    cap = torch.minimum(cap, balls.pop()[0])
                balls.append((cap, centre))
                continue
            assert isinstance(stage, FixedStage)
            mixing = contract.ask_mixing(stage, replace(facts, clients=clients))
            matrix = compose_mixing(mixing.matrix.double().cpu(), matrix)
            offset = compose_offset(mixing.matrix, offset, mixing.offset)
            clients = mix_clients(clients, mixing.matrix)
        assert isinstance(rule, LinearAggregator)
        weights = contract.ask_weights(rule, clients).cpu()
        return LinearChain(
            weights=weights_on_clients(weights, matrix),
            caps=caps,
            balls=tuple(balls),
            decay=decay,
            offset=None if offset is None else weigh_offset(weights, offset),
            depends=chain_dependence(steps, facts.clients),
            keeps_bounds=all(caps_residuals(stage, facts.clients) for stage in stages if isinstance(stage, CapStage)),
        )


class StreamedSums:
    """Sums `sum_i p_i cap_i(u_i) + offset` of every model, added up as updates arrive. No update is kept.

    A capped update is `factor u + pull w`: a number of each client says how much of the model is taken off.
    """

    def __init__(self, plan: RoundPlan, models: Tensor, states: Sequence[States]) -> None:
        shape = len(models), len(plan.clients)
        self._chain = LinearChain.of(plan.server.aggregation, plan.facts)
        self._models = models
        self._states = states
        self._sums = torch.zeros_like(models)
        self._pull = torch.zeros(len(models), dtype=torch.float64)
        self._sizes = torch.zeros(len(models), dtype=torch.float64)
        self._factors = torch.ones(shape, dtype=torch.float64)
        self._residuals = torch.ones(shape, dtype=torch.float64)

    def add(self, submission: Submission) -> None:
        """Project and add: a projection changes the factor of an update, and how much of the model is taken off."""
        chain = self._chain
        part = submission.part
        updates = submission.updates
        weights = chain.weights[part]
        decay = chain.decay[part]
        lengths = torch.where(submission.bad, 0.0, submission.norms)
        residuals = row_norms(updates, self._models[:, None], decay) if bool(decay.any()) else lengths
        factors = torch.ones_like(residuals)
        pull = torch.zeros_like(residuals)
        weighted_pull = torch.zeros_like(residuals)
        for cap, centre in chain.balls:
            shift = centre[part]
            distances = residuals if bool(shift.any()) else lengths
            if bool((factors != 1).any()):  # an earlier cap has moved some of them
                moved = factors.to(updates)[:, :, None] * updates
                distances = row_norms(moved + (pull + shift).to(updates)[:, :, None] * self._models[:, None])
            shrunk = cap_factors(cap[part], distances, updates.dtype)
            factors = shrunk * factors
            pull = shrunk * pull + (shrunk - 1.0) * shift
            weighted_pull = shrunk * weighted_pull + (shrunk - 1.0) * weights * shift
        shares = weights * factors
        self._sums += torch.bmm(shares.to(updates)[:, None], updates)[:, 0]
        self._pull += weighted_pull.sum(1)
        self._sizes += (shares.abs() * lengths).sum(1)
        self._factors[:, part] = factors
        self._residuals[:, part] = residuals

    def results(self) -> tuple[ChainResult, ...]:
        """Return the aggregate for each model."""
        chain = self._chain
        updates = self._sums
        if bool(self._pull.any()):
            updates = updates + self._pull.to(self._sums)[:, None] * self._models
        sizes = self._sizes + self._pull.abs() * row_norms(self._models)
        if chain.offset is not None:
            updates = updates + chain.offset.to(updates)
            sizes = sizes + float(row_norms(chain.offset))
        rounding = contract.tolerance(len(chain.weights), updates)
        return tuple(
            ChainResult(
                update=update,
                weights=chain.weights * factors,
                weight_bound=chain.weights,
                cap=chain.caps,
                residual=residual,
                depends=chain.depends,
                keeps_bounds=chain.keeps_bounds,
                states=states,
                rounding=rounding * float(size),
                has_offset=chain.offset is not None or bool(pull),
            )
            for update, factors, residual, size, pull, states in zip(
                updates, self._factors, self._residuals, sizes, self._pull, self._states, strict=True
            )
        )


class WholeChain:
    """Chain that looks at all updates, run once for each model; bad updates are hidden from it."""

    def __init__(self, session: Session, plan: RoundPlan, models: Tensor, states: Sequence[States]) -> None:
        self._session = session
        self._plan = plan
        self._models = models
        self._states = states
        self._results: tuple[ChainResult, ...] = ()

    def add(self, submission: Submission) -> None:
        """Run the chain on all updates of the round."""
        rows = zip(submission.updates, submission.bad.numpy(), self._models, self._states, strict=True)
        self._results = tuple(self._run(values, bad, model, states) for values, bad, model, states in rows)

    def results(self) -> tuple[ChainResult, ...]:
        """Return the aggregate for each model."""
        return self._results

    def _run(self, values: Tensor, bad: NDArray[np.bool_], model: Tensor, states: States) -> ChainResult:
        """Run the chain on the updates of one model."""
        federation = self._session.federation
        steps = self._plan.server.aggregation
        dropping = federation.config.server.bad_update == "drop"
        updates = ClientUpdates(values, self._plan.seen_from(model))
        hides = hides_bad_updates(steps, bad, drop=dropping)
        if hides:
            updates = drop_bad_updates(updates, bad)
        # Hooks are handed the same updates without what the server has.
        server_round = replace(updates.round, server_side=federation.server_view(self._plan.number))
        result = run_chain(steps, replace(updates, round=server_round), states)
        if hides and dropping:
            result = replace(result, depends="all")
        result = self._replace_weights(updates, result)
        return restore_clients(result, ~bad) if hides else result

    def _replace_weights(self, updates: ClientUpdates, result: ChainResult) -> ChainResult:
        """Return the result with the weights that a plugin reports instead, if one does; they must rebuild it."""
        assert result.reported is not None
        if not self._plan.attacked:
            return result
        answer = self._session.hooks.effective_weights(updates, result.reported)
        if answer is None:
            return result
        weights, who = answer
        contract.check_reported(who, weights, result.reported, updates.values)
        weights = weights.double().cpu()
        return replace(result, weights=weights, weight_bound=weights, depends="all", weights_from=who)


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
        fresh = position > 0 and isinstance(steps[position - 1], CapStage | FixedStage)  # made here, so not needed
        staged = apply_stage(stage, updates, states.get(state_key(position), {}), in_place=fresh)
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
    answer = contract.ask_aggregate(rule, updates, states.get(rule_key, {}))
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


def apply_stage(stage: Stage, updates: ClientUpdates, state: State, *, in_place: bool = False) -> AppliedStage:
    """Apply a stage to the updates. The core itself applies caps and fixed mixings, `in_place` if it may."""
    values = updates.values
    current = updates.round
    if isinstance(stage, CapStage):
        return apply_cap(stage, updates, state, in_place=in_place)
    if isinstance(stage, FixedStage):
        mixing = contract.ask_mixing(stage, current.facts)
        matrix = mixing.matrix.to(values)
        offset = None if mixing.offset is None else mixing.offset.to(values)
        moved = scale_rows(values, matrix, in_place=in_place) if matrix.ndim == 1 else matrix @ values
        return AppliedStage(moved if offset is None else moved.add_(offset), matrix, offset, state)
    result = contract.ask_transform(stage, updates, state)
    return AppliedStage(result.values, result.mixing, result.offset, result.state)


def apply_cap(stage: CapStage, updates: ClientUpdates, state: State, *, in_place: bool) -> AppliedStage:
    """Project every update on the ball of its cap, whose centre may be what weight decay does to the model."""
    values = updates.values
    current = updates.round
    cap = contract.ask_caps(stage, current.clients)
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


def hides_bad_updates(steps: Sequence[AggregationStep], bad: NDArray[np.bool_], *, drop: bool) -> bool:
    """Ask whether a chain runs without the bad updates: the config drops them, or the chain would look at them."""
    return bool(bad.any()) and not bad.all() and (drop or not is_linear_chain(steps))


def drop_bad_updates(updates: ClientUpdates, bad: NDArray[np.bool_]) -> ClientUpdates:
    """Return the updates that are not bad."""
    rows = np.flatnonzero(~bad)
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
