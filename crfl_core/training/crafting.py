"""Updates that attackers craft: what they are shown, what they submit, and what they remember of a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.errors import PluginFailure
from crfl_core.plugin_api.plugin_errors import PluginMethod, errors_of
from crfl_core.plugin_loading.mutation_guard import guard_inputs
from crfl_core.records.attacker_view import AttackerObservation, AttackerView
from crfl_core.records.round import ClientUpdates, ParticipantRows, State, Submission
from crfl_core.training import aggregator_contract as contract
from crfl_core.training.aggregation_chain import States, drop_quarantined, hides_quarantined, run_chain
from crfl_core.training.attackers import attack_state_of, overrides
from crfl_core.training.effective_weights import row_norms

if TYPE_CHECKING:
    from crfl_core.plugin_api.aggregator import Aggregator
    from crfl_core.plugin_api.attack import Attack
    from crfl_core.training.federation import Federation
    from crfl_core.training.session import RoundPlan


class Crafting:
    """Attackers of one group in one round: they craft together, from what their attack declares that it knows."""

    def __init__(
        self, federation: Federation, plan: RoundPlan, start: Tensor, states: States, attack_state: State | None
    ) -> None:
        self._federation = federation
        self._plan = plan
        self._start = start
        self._states = states
        self._attack_state = attack_state_of(federation, attack_state)

    def craft(
        self, attack: Attack, part: ParticipantRows, values: Tensor, attackers: NDArray[np.int64], weights: Tensor
    ) -> Tensor:
        """Return what the attackers of a part submit, (a, P).

        `values`, (k, P), are the updates as trained, `attackers` the places of attackers in the part, `weights` what
        they expect their weights to be, (a,).
        """
        view = self.view(attack, part, values, attackers, weights)
        who = PluginMethod("attack", attack, "craft")
        with errors_of("attack", attack), guard_inputs(who, view, self._attack_state):
            crafted = attack.craft(view, self._attack_state)
        if not isinstance(crafted, Tensor) or crafted.shape != view.own_updates.shape:
            found = tuple(crafted.shape) if isinstance(crafted, Tensor) else type(crafted).__name__
            raise PluginFailure(
                f"attack {attack.full_name}: craft() must return {tuple(view.own_updates.shape)}, found {found}"
            )
        return crafted

    def view(
        self, attack: Attack, part: ParticipantRows, values: Tensor, attackers: NDArray[np.int64], weights: Tensor
    ) -> AttackerView:
        """Return what attackers are shown: no more than their attack declares."""
        federation = self._federation
        plan = self._plan
        clients = plan.clients.take(part)
        current = plan.seen_from(self._start)
        streams = federation.streams.only("attack")
        honest = attackers[:0]
        if attack.knowledge != "own":
            honest = np.flatnonzero(~plan.behaviour.attacking[part])
        return AttackerView(
            round=replace(current, clients=clients.take(attackers), streams=streams),
            own_updates=values if len(attackers) == len(values) else values[attackers],
            weights=weights,
            honest=ClientUpdates(values[honest], replace(current, clients=clients.take(honest), streams=streams)),
            model=federation.new_model(),
            features=federation.test_sets["clean"].features,
            aggregate_candidates=self._aggregation(values, attackers) if attack.knowledge == "rule" else None,
        )

    def _aggregation(
        self, values: Tensor, attackers: NDArray[np.int64]
    ) -> Callable[[Tensor, Aggregator | None], Tensor]:
        """Return the server's aggregation as a function of attackers' updates.

        All updates of the round are here.
        """
        server = self._plan.server
        dropping = self._federation.config.server.bad_update == "drop"
        server_side = self._federation.server_view(self._plan.number, self._plan.group or 0)
        current = replace(self._plan.seen_from(self._start), server_side=server_side)

        def aggregate(candidates: Tensor, rule: Aggregator | None) -> Tensor:
            steps = server.aggregation if rule is None else (rule,)
            submitted = values.clone()
            submitted[attackers] = candidates.to(values)
            quarantined = ~torch.isfinite(row_norms(submitted))
            updates = ClientUpdates(torch.where(quarantined[:, None].to(values.device), 0.0, submitted), current)
            if hides_quarantined(steps, quarantined.numpy(), drop=dropping):
                updates = drop_quarantined(updates, quarantined.numpy())
            return run_chain(steps, updates, self._states if rule is None else {}).update

        return aggregate


class AttackerSubmissions:
    """Updates that the attackers among the participants submit, attacking or not, for an attack that learns.

    `rows` is (a, P), in order of participants.
    """

    def __init__(self, federation: Federation, plan: RoundPlan, start: Tensor) -> None:
        self._places = np.flatnonzero(np.isin(plan.clients.ids, federation.participation.attackers))
        self._all_places = np.arange(len(plan.clients))
        self.rows = start.new_zeros(len(self._places), len(start))

    def add(self, submission: Submission) -> None:
        """Keep the attackers' updates of a part.

        Only those for the first model, which is the run's, are kept.
        """
        places = self._all_places[submission.part]
        mine = np.flatnonzero(np.isin(places, self._places))
        self.rows[np.searchsorted(self._places, places[mine])] = submission.updates[0, mine]


def initial_attack_state(federation: Federation) -> State | None:
    """Return what an attack remembers in round 1.

    None if it never learns: then every process has what it prepared.
    """
    attack = federation.config.attack
    return federation.prepared if attack is not None and overrides(attack, "learn") else None


def learn_from_round(federation: Federation, seen: AttackerObservation, state: State) -> State:
    """Return what the attack remembers after a round, checked."""
    attack = federation.config.attack
    assert attack is not None
    who = PluginMethod("attack", attack, "learn")
    with errors_of("attack", attack), guard_inputs(who, seen, state):
        answer = attack.learn(seen, state)
    contract.check_state(who, answer)
    return {name: tensor.detach() for name, tensor in answer.items()}


def observe_round(
    federation: Federation, plan: RoundPlan, start: Tensor, following: Tensor, submitted: Tensor
) -> AttackerObservation:
    """Return a round as its attackers see it.

    They see the models broadcast before and after, and what they submitted.
    """
    attackers = np.isin(plan.clients.ids, federation.participation.attackers)
    streams = federation.streams.only("attack")
    current = replace(plan.seen_from(start), clients=plan.clients.take(attackers), streams=streams)
    return AttackerObservation(current, following, submitted, attacked=bool(plan.behaviour.attacking.any()))
