"""From what the attackers of a run did to the threat that its certificates assume."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

import crfl_core.certification.formulas as formulas
from crfl_core.errors import failures_named
from crfl_core.plugin_api.attack import Attack, RealisedAttack
from crfl_core.records.ledger import Ledger
from crfl_core.records.measurements import norm_error, scale_error, share_error
from crfl_core.records.threat import Threat, ThreatSettings


class ResolvedThreat(NamedTuple):
    """The threat of a run as it was written, and where the attack that was run goes beyond it."""

    threat: Threat
    uncovered: tuple[str, ...]


def measure_attack(ledger: Ledger) -> RealisedAttack:
    """What the attackers did, as the ledger measured it, sizes rounded up by what measuring may be off by.

    Scales are not, nor are shares, which are quotients of counts: whoever compares them allows for that.
    The poison ratio is the one that would amount to the same poison if it were alike in all steps. Weight decay and a
    proximal weight make late steps count most, so there all poison is taken for late.
    """
    rows = ledger.clients.take(ledger.clients.attacking)
    norms = 1.0 + norm_error(ledger.facts)
    pull = rows.weight_decay + ledger.facts.training.proximal
    steps = formulas.effective_steps(rows.learning_rate, np.maximum(1, rows.steps), pull)
    return RealisedAttack(
        round=rows.round,
        client=rows.client,
        poison_ratio=np.minimum(1.0, rows.poisoned_share / steps),
        delta=rows.delta * norms,
        flips=rows.label_flips,
        scale=rows.scale,
    )


def resolve_threat(settings: ThreatSettings, attack: Attack | None, ledger: Ledger) -> ResolvedThreat:
    """The threat of a run, from the settings and from what the attack says that it did.

    What an attack says is not believed: it is compared with what was measured, and with what its class can do.
    """
    done = measure_attack(ledger)
    if attack is None or len(done.round) == 0:
        return ResolvedThreat(settings.resolve(None, ledger.facts.rounds), ())
    if attack.scale == "replace":  # other attackers multiply by a number that is known exactly
        done = replace(done, scale=done.scale * (1.0 + scale_error(ledger.facts)))
    with failures_named(f"attack: {attack.full_name} failed"):
        own = attack.threat(done)
    threat = settings.resolve(own, ledger.facts.rounds)
    assumed = threat.enlarge(shares=share_error(ledger), sizes=2.0 * norm_error(ledger.facts))
    return ResolvedThreat(threat, assumed.excess(own) or assumed.excess(Attack.threat(attack, done)))


def enlarge_threat(threat: Threat, ledger: Ledger) -> Threat:
    """The threat that certificates are handed, larger by more than what was measured is rounded up or allowed for.

    So whoever states what an attack did is covered, and the numbers hold for all that counts as covered.
    """
    return threat.enlarge(shares=2.0 * share_error(ledger), sizes=2.0 * norm_error(ledger.facts))
