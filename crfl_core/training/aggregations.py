"""Updates become one: added up as they arrive where a chain is linear, else all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.records.round import ClientUpdates
from crfl_core.training import aggregator_contract as answers
from crfl_core.training.aggregation import ChainResult, LinearChain, States, row_norms, run_chain, shrinkage
from crfl_core.training.bad_updates import good_updates, hides, spread_out
from crfl_core.training.session import Plan, Session
from crfl_core.training.submissions import Received


class Aggregation(Protocol):
    """Takes in what arrives, and has a result when everything has."""

    def add(self, received: Received) -> None:
        """Some participants' updates."""

    def results(self) -> tuple[ChainResult, ...]:
        """What became of all updates, for each model."""


class LinearSums:
    """`sum_i p_i cap_i(u_i) + offset` of every model, added up as updates arrive. Nothing of them is kept.

    A capped update is `factor u + pull w`: a number of each client says how much of the model is taken off.
    """

    def __init__(self, plan: Plan, models: Tensor, states: Sequence[States]) -> None:
        self._chain = LinearChain.of(plan.server.aggregation, plan.facts)
        self._models = models
        self._states = states
        self._sums = torch.zeros_like(models)
        self._pull, self._sizes = (torch.zeros(len(models), dtype=torch.float64) for _ in range(2))
        self._factors, self._residuals = (
            torch.ones(len(models), len(plan.clients), dtype=torch.float64) for _ in range(2)
        )

    def add(self, received: Received) -> None:
        """Project and add: a projection changes the factor of an update, and how much of the model is taken off."""
        chain = self._chain
        part = received.part
        updates = received.updates
        weights = chain.weights[part]
        decay = chain.decay[part]
        lengths = torch.where(received.bad, 0.0, received.norms)
        residuals = row_norms(updates, self._models[:, None], decay) if bool(decay.any()) else lengths
        factors = torch.ones_like(residuals)
        pull = torch.zeros_like(residuals)
        weighted = torch.zeros_like(residuals)
        for cap, centre in chain.balls:
            shift = centre[part]
            away = residuals if bool(shift.any()) else lengths
            if bool((factors != 1).any()):  # somebody is no longer where it was
                moved = factors.to(updates)[:, :, None] * updates
                away = row_norms(moved + (pull + shift).to(updates)[:, :, None] * self._models[:, None])
            shrunk = shrinkage(cap[part], away, updates.dtype)
            factors = shrunk * factors
            pull = shrunk * pull + (shrunk - 1.0) * shift
            weighted = shrunk * weighted + (shrunk - 1.0) * weights * shift
        shares = weights * factors
        self._sums += torch.bmm(shares.to(updates)[:, None], updates)[:, 0]
        self._pull += weighted.sum(1)
        self._sizes += (shares.abs() * lengths).sum(1)
        self._factors[:, part] = factors
        self._residuals[:, part] = residuals

    def results(self) -> tuple[ChainResult, ...]:
        """One for each model."""
        chain = self._chain
        pulled = self._pull.to(self._sums)[:, None] * self._models
        updates = self._sums + pulled if bool(self._pull.any()) else self._sums
        updates = updates if chain.offset is None else updates + chain.offset.to(updates)
        sizes = self._sizes + self._pull.abs() * row_norms(self._models)
        sizes = sizes if chain.offset is None else sizes + float(row_norms(chain.offset))
        rounding = answers.tolerance(len(chain.weights), updates)
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


class WholeRounds:
    """Chains that look at all updates, once for each model; bad rows are hidden from them."""

    def __init__(self, session: Session, plan: Plan, models: Tensor, states: Sequence[States]) -> None:
        self._session = session
        self._plan = plan
        self._models = models
        self._states = states
        self._results: tuple[ChainResult, ...] = ()

    def add(self, received: Received) -> None:
        """All updates of the round."""
        each = zip(received.updates, received.bad.numpy(), self._models, self._states, strict=True)
        self._results = tuple(self._run(values, bad, model, states) for values, bad, model, states in each)

    def results(self) -> tuple[ChainResult, ...]:
        """One for each model."""
        return self._results

    def _run(self, values: Tensor, bad: NDArray[np.bool_], model: Tensor, states: States) -> ChainResult:
        steps = self._plan.server.aggregation
        dropping = self._session.federation.config.server.bad_update == "drop"
        updates = ClientUpdates(values, self._plan.seen_from(model))
        if hide := hides(steps, bad, drop=dropping):
            updates = good_updates(updates, bad)
        # Hooks are handed the same updates without what the server has.
        seen = replace(updates.round, server_side=self._session.federation.server(self._plan.number))
        result = run_chain(steps, replace(updates, round=seen), states)
        if hide and dropping:
            result = replace(result, depends="all")
        result = self._reported(updates, result)
        return spread_out(result, ~bad) if hide else result

    def _reported(self, updates: ClientUpdates, result: ChainResult) -> ChainResult:
        """The result with the weights that a plugin puts in the place of those of the chain; they must rebuild it."""
        assert result.reported is not None
        if (
            not self._plan.attacked
            or (answer := self._session.hooks.effective_weights(updates, result.reported)) is None
        ):
            return result
        weights, who = answer
        answers.check_reported(who, weights, result.reported, updates.values)
        weights = weights.double().cpu()
        return replace(result, weights=weights, weight_bound=weights, depends="all", weights_from=who)
