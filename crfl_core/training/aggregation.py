"""Aggregation of a round: streamed as updates arrive, or whole, with all updates at once.

A chain of caps, fixed stages and a linear rule is linear in the capped updates. `StreamedSums` adds them up as they
arrive, so memory does not grow with the number of clients. Any other chain needs all updates: `WholeChain`, which
runs `aggregation_chain`. Every answer of a step is checked, see `aggregator_contract`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core import resource_limits
from crfl_core.errors import ConfigError
from crfl_core.plugin_api.aggregator import (
    AggregationStep,
    CapStage,
    FixedStage,
    LinearAggregator,
    Stage,
    caps_residuals,
    chain_dependence,
    is_linear_chain,
    mix_clients,
)
from crfl_core.records.round import ClientUpdates, Dependence, RoundFacts, Submission
from crfl_core.training import aggregator_contract as contract
from crfl_core.training.aggregation_chain import (
    ChainResult,
    States,
    drop_quarantined,
    hides_quarantined,
    restore_clients,
    run_chain,
)
from crfl_core.training.attackers import crafts_from_others
from crfl_core.training.effective_weights import (
    cap_factors,
    compose_mixing,
    compose_offset,
    row_norms,
    weigh_offset,
    weights_on_clients,
)

if TYPE_CHECKING:
    from crfl_core.training.groups import FixedAnswers
    from crfl_core.training.session import RoundPlan, Session


class Aggregation(Protocol):
    """Aggregation of one group: takes what arrives, and has a result for each model when everything has."""

    def add(self, submission: Submission) -> None:
        """Take the updates of some participants."""

    def results(self) -> tuple[ChainResult, ...]:
        """Return the aggregate for each model."""


def start_aggregation(session: Session, plan: RoundPlan, models: Tensor, states: Sequence[States]) -> Aggregation:
    """Start the aggregation of a group's round.

    It is streamed if the chain allows that.
    """
    if can_stream(session):
        return StreamedSums(plan, models, states)
    return WholeChain(session, plan, models, states)


def can_stream(session: Session) -> bool:
    """Ask whether the server can add up updates as they arrive.

    The chain must be linear, and zeroed updates must keep their weight.
    """
    config = session.federation.config
    return (
        is_linear_chain(config.aggregation)
        and config.server.bad_update == "zero"
        and not session.hooks.replaces_weights
    )


def needs_all_updates(session: Session, plan: RoundPlan) -> bool:
    """Ask whether all updates must be there at once.

    The chain may need that, or attackers who craft from the others' updates.
    """
    crafts = bool(plan.behaviour.attacking.any()) and crafts_from_others(session.federation.config.attack)
    return crafts or not can_stream(session)


def check_free_memory(session: Session) -> None:
    """Raise `ConfigError` if the updates cannot fit into memory.

    It counts the updates that must be there at once. Called before round 1.
    """
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
    """Raise `ConfigError` if the updates of a round cannot fit.

    The message says what they need at least and what is left.
    """
    needed = copies_in_memory(steps, crafts=crafts) * clients * parameters * itemsize
    room = resource_limits.free_memory()
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
    """Return how many copies of all updates a chain keeps at least.

    The chain looks at the updates; with `crafts` attackers look, too. Every stage but a cap makes new updates, and
    attackers who craft replace rows of a copy that they may keep.
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
    def of(steps: Sequence[AggregationStep], facts: RoundFacts, answers: FixedAnswers | None = None) -> LinearChain:
        """Return the chain of a round.

        Its steps see nothing but the round's facts.
        """
        *stages, rule = steps
        clients = facts.clients
        decay = torch.from_numpy(1.0 - facts.clients.retention)
        caps = torch.full_like(decay, torch.inf)
        balls: list[tuple[Tensor, Tensor]] = []
        matrix: Tensor | None = None
        offset: Tensor | None = None
        for stage in stages:
            if isinstance(stage, CapStage):
                cap = contract.ask_caps(stage, clients, answers).cpu()
                centre = decay if caps_residuals(stage, clients) else decay * 0.0
                if caps_residuals(stage, clients):
                    caps = torch.minimum(caps, cap)
                if balls and torch.equal(balls[-1][1], centre):  # of two balls around one centre the smaller counts
                    cap = torch.minimum(cap, balls.pop()[0])
                balls.append((cap, centre))
                continue
            assert isinstance(stage, FixedStage)
            mixing = contract.ask_mixing(stage, replace(facts, clients=clients), answers)
            matrix = compose_mixing(mixing.matrix.double().cpu(), matrix)
            offset = compose_offset(mixing.matrix, offset, mixing.offset)
            clients = mix_clients(clients, mixing.matrix)
        assert isinstance(rule, LinearAggregator)
        weights = contract.ask_weights(rule, clients, answers).cpu()
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
        self._chain = LinearChain.of(plan.server.aggregation, plan.facts, plan.server.answers)
        self._models = models
        self._states = states
        self._sums = torch.zeros_like(models)
        self._pull = torch.zeros(len(models), dtype=torch.float64)
        self._sizes = torch.zeros(len(models), dtype=torch.float64)
        self._factors = torch.ones(shape, dtype=torch.float64)
        self._residuals = torch.ones(shape, dtype=torch.float64)

    def add(self, submission: Submission) -> None:
        """Project the updates and add them to the sums.

        A projection changes the factor of an update, and how much of the model is taken off.
        """
        chain = self._chain
        part = submission.part
        updates = submission.updates
        weights = chain.weights[part]
        decay = chain.decay[part]
        lengths = torch.where(submission.quarantined, 0.0, submission.norms)
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
    """Chain that looks at all updates, run once for each model; quarantined updates are hidden from it."""

    def __init__(self, session: Session, plan: RoundPlan, models: Tensor, states: Sequence[States]) -> None:
        self._session = session
        self._plan = plan
        self._models = models
        self._states = states
        self._results: tuple[ChainResult, ...] = ()

    def add(self, submission: Submission) -> None:
        """Run the chain on all updates of the round."""
        rows = zip(submission.updates, submission.quarantined.numpy(), self._models, self._states, strict=True)
        self._results = tuple(self._run(*row) for row in rows)

    def results(self) -> tuple[ChainResult, ...]:
        """Return the aggregate for each model."""
        return self._results

    def _run(self, values: Tensor, quarantined: NDArray[np.bool_], model: Tensor, states: States) -> ChainResult:
        """Run the chain on the updates of one model."""
        federation = self._session.federation
        steps = self._plan.server.aggregation
        dropping = federation.config.server.bad_update == "drop"
        updates = ClientUpdates(values, self._plan.seen_from(model))
        hides = hides_quarantined(steps, quarantined, drop=dropping)
        if hides:
            updates = drop_quarantined(updates, quarantined)
        # Hooks are handed the same updates without what the server has.
        server_round = replace(
            updates.round, server_side=federation.server_view(self._plan.number, self._plan.group or 0)
        )
        result = run_chain(steps, replace(updates, round=server_round), states, self._plan.server.answers)
        if hides and dropping:
            result = replace(result, depends="all")
        result = self._replace_weights(updates, result)
        return restore_clients(result, ~quarantined) if hides else result

    def _replace_weights(self, updates: ClientUpdates, result: ChainResult) -> ChainResult:
        """Return the result with the weights that a plugin reports, if any.

        These weights must rebuild the result.
        """
        assert result.reported is not None
        if not self._plan.is_run:
            return result
        answer = self._session.hooks.effective_weights(updates, result.reported)
        if answer is None:
            return result
        weights, who = answer
        contract.check_reported(who, weights, result.reported, updates.values)
        weights = weights.double().cpu()
        if torch.equal(weights, result.weights):  # the chain's own, which have been checked
            return result
        return replace(result, weights=weights, weight_bound=weights, depends="all", weights_from=who)
