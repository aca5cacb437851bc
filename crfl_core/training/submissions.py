"""What arrives at the server: honest updates as trained, malicious ones as crafted, bad ones as zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.errors import PluginFailure, RunError
from crfl_core.plugin_api.aggregator import Aggregator, LinearAggregator
from crfl_core.plugin_api.attack import Attack
from crfl_core.plugin_api.plugin_errors import errors_of, source_location
from crfl_core.plugin_loading.mutation_guard import guard_inputs
from crfl_core.records.attacker_view import AttackerView
from crfl_core.records.round import BatchMeasurements, ClientUpdates, LocalUpdates, State
from crfl_core.training import aggregator_contract as answers
from crfl_core.training import server_optimiser as stepping
from crfl_core.training.aggregation import States, row_norms, run_chain
from crfl_core.training.attackers import overrides, state_of
from crfl_core.training.bad_updates import good_updates, hides
from crfl_core.training.federation import Federation
from crfl_core.training.session import Plan
from crfl_core.training.update_memory import copied

Rows = slice | NDArray[np.int64]
"""Some participants of a round, by their place in it."""


@dataclass(frozen=True)
class Received:
    """Updates of some participants as the server takes them, (K, k, P); `bad` ones, (K, k), are zero now.

    `scale` is the measured ratio of the submitted to the trained update of each attacker, 1 for others.
    """

    part: Rows
    updates: Tensor
    norms: Tensor
    bad: Tensor
    scale: NDArray[np.float64]
    poisoning: BatchMeasurements


def needs_others(attack: Attack | None) -> bool:
    """Whether attackers craft their updates from those of other participants."""
    return attack is not None and overrides(attack, "craft") and attack.knowledge != "own"


class Submissions:
    """What the participants of a round submit, given what they trained.

    Attackers of one round craft together. If they know nothing of the others, those need not wait for them.
    """

    def __init__(
        self, federation: Federation, plan: Plan, start: Tensor, states: States, attack_state: State | None
    ) -> None:
        self._federation = federation
        self._plan = plan
        self._start = start
        self._states = states
        self._attack_state = state_of(federation, attack_state)
        self._together = federation.attack is not None and overrides(federation.attack, "craft")
        self._own: list[tuple[NDArray[np.int64], Tensor, BatchMeasurements]] = []

    def of(self, trained: LocalUpdates) -> Iterator[Received]:
        """What arrives of a part; attackers who craft wait for each other."""
        attacking = self._plan.conduct.attacking
        rows = np.arange(len(attacking))[trained.part]
        mine = attacking[rows]
        if not self._together or not mine.any() or len(rows) == len(attacking):
            yield self.received(trained.part, trained.updates, trained.measurements)
            return
        self._own.append(taken(trained, rows, mine))
        if not mine.all():
            yield self.received(*taken(trained, rows, ~mine))

    def rest(self) -> Iterator[Received]:
        """What the attackers who waited submit, once all have trained."""
        if self._own:
            rows, updates, poisonings = zip(*self._own, strict=True)
            columns = {name: np.concatenate([vars(one)[name] for one in poisonings]) for name in vars(poisonings[0])}
            yield self.received(np.concatenate(rows), torch.cat(updates, 1), BatchMeasurements(**columns))

    def received(self, part: Rows, updates: Tensor, poisoning: BatchMeasurements) -> Received:
        """What some participants submit who trained these updates, (K, k, P)."""
        attacking = self._plan.conduct.attacking[part]
        plan = self._plan
        attackers = np.flatnonzero(attacking)
        scale = np.ones(updates.shape[1])
        norms = row_norms(updates)
        if len(attackers) and self._federation.attack is not None:
            before = norms[0, attackers]
            updates = self._crafted(self._federation.attack, part, updates[0], attackers)
            norms = row_norms(updates)
            scale[attackers] = (norms[0, attackers] / before.clamp(min=torch.finfo(updates.dtype).tiny)).numpy()
        bad = ~torch.isfinite(norms)
        if bad.any():
            if not plan.attacked:  # everybody is honest, and no ledger would say whose update was left out
                client = plan.clients.ids[part][int(bad.any(0).nonzero()[0])]
                raise RunError(
                    f"round {plan.number} of a continuation or clean twin: the update of client {client} is not finite "
                    "or of the wrong shape: lower training.learning_rate, or mend the engine"
                )
            updates = copied(updates)
            updates[bad.to(updates.device)] = 0.0
            scale[bad[0].numpy() & attacking] = 0.0  # a bad update counts as zero, here as well
        return Received(part, updates, norms, bad, scale, poisoning)

    def _crafted(self, attack: Attack, part: Rows, values: Tensor, attackers: NDArray[np.int64]) -> Tensor:
        """All updates with those of the attackers replaced. Only a run is attacked, so there is one model."""
        known = self.known(attack, part, values, attackers)
        state = self._attack_state
        who = f"attack {attack.full_name}: craft() ({source_location(type(attack).craft)})"
        with errors_of("attack", attack), guard_inputs(who, known, state):
            crafted = attack.craft(known, state)
        if not isinstance(crafted, Tensor) or crafted.shape != known.own_updates.shape:
            found = tuple(crafted.shape) if isinstance(crafted, Tensor) else type(crafted).__name__
            raise PluginFailure(
                f"attack {attack.full_name}: craft() must return {tuple(known.own_updates.shape)}, found {found}"
            )
        if len(attackers) == len(values):
            return crafted.to(values)[None]
        submitted = copied(values)
        submitted[attackers] = crafted.to(values)
        return submitted[None]

    def known(self, attack: Attack, part: Rows, values: Tensor, attackers: NDArray[np.int64]) -> AttackerView:
        """What attackers are told: no more than their attack declares."""
        federation = self._federation
        plan = self._plan
        clients = plan.clients.take(part)
        current = plan.seen_from(self._start)
        honest = np.flatnonzero(~plan.conduct.attacking[part]) if attack.knowledge != "own" else attackers[:0]
        seen, others = (
            replace(current, clients=clients.take(rows), streams=federation.streams.only("attack"))
            for rows in (attackers, honest)
        )
        return AttackerView(
            round=seen,
            own_updates=values if len(attackers) == len(values) else values[attackers],
            weights=nominal_weights(plan)[part][attackers],
            honest=ClientUpdates(values[honest], others),
            model=federation.shown_model,
            features=federation.test_sets["clean"].features,
            aggregate_candidates=self._through(values, attackers) if attack.knowledge == "rule" else None,
        )

    def _through(self, values: Tensor, attackers: NDArray[np.int64]) -> Callable[[Tensor, Aggregator | None], Tensor]:
        """The server's step as a function of what attackers submit, in a round of which all updates are here."""
        server = self._plan.server
        dropping = self._federation.config.server.bad_update == "drop"
        current = replace(self._plan.seen_from(self._start), server_side=self._federation.server(self._plan.number))

        def aggregate(candidates: Tensor, rule: Aggregator | None) -> Tensor:
            steps = server.aggregation if rule is None else (rule,)
            submitted = values.clone()
            submitted[attackers] = candidates.to(values)
            bad = ~torch.isfinite(row_norms(submitted))
            updates = ClientUpdates(torch.where(bad[:, None].to(values.device), 0.0, submitted), current)
            if hides(steps, bad.numpy(), drop=dropping):
                updates = good_updates(updates, bad.numpy())
            return run_chain(steps, updates, self._states if rule is None else {}).update

        return aggregate


def taken(
    trained: LocalUpdates, rows: NDArray[np.int64], chosen: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], Tensor, BatchMeasurements]:
    """Some participants of a part: their places in the round, updates and poison."""
    which = np.flatnonzero(chosen)
    return rows[which], trained.updates[:, torch.from_numpy(which)], trained.measurements.take(which)


def nominal_weights(plan: Plan) -> Tensor:
    """The weights that attackers expect: those of a linear rule, else by sample counts, times the server's rate."""
    rule = plan.server.aggregation[-1]
    rate = stepping.nominal_rate(plan.server.optimiser, plan)
    if isinstance(rule, LinearAggregator):
        return rate * answers.weights_of(rule, plan.clients)
    samples = torch.from_numpy(plan.clients.samples).double()
    return rate * samples / samples.sum()
