"""What an attack remembers from round to round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from crfl_core.plugin_api.plugin_errors import errors_of, source_location
from crfl_core.plugin_loading.mutation_guard import guard_inputs
from crfl_core.records.attacker_view import AttackerObservation
from crfl_core.records.round import State
from crfl_core.training.aggregator_contract import check_state
from crfl_core.training.attackers import overrides
from crfl_core.training.federation import Federation
from crfl_core.training.session import Plan


def first_state(federation: Federation) -> State | None:
    """What an attack remembers in round 1; None if it never learns: every process has what it prepared."""
    attack = federation.attack
    return federation.prepared if attack is not None and overrides(attack, "learn") else None


def learned(federation: Federation, seen: AttackerObservation, state: State) -> State:
    """What it remembers after a round, checked."""
    attack = federation.attack
    assert attack is not None
    who = f"attack {attack.full_name}: learn() ({source_location(type(attack).learn)})"
    with errors_of("attack", attack), guard_inputs(who, seen, state):
        answer = attack.learn(seen, state)
    check_state(who, answer)
    return {name: tensor.detach() for name, tensor in answer.items()}


def observed(
    federation: Federation, plan: Plan, start: Tensor, following: Tensor, submitted: Tensor
) -> AttackerObservation:
    """A round of the run as its attackers see it: the models broadcast before and after, and what they submitted."""
    mine = np.isin(plan.clients.ids, federation.participation.attackers)
    current = replace(plan.seen_from(start), clients=plan.clients.take(mine), streams=federation.streams.only("attack"))
    return AttackerObservation(current, following, submitted, attacked=bool(plan.conduct.attacking.any()))
