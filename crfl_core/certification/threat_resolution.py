"""The threat that the certificates of a run assume: from the config and from what the attack measurably did."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import crfl_core.certification.formulas as formulas
from crfl_core.errors import wrap_failures
from crfl_core.plugin_api.attack import Attack, RealisedAttack
from crfl_core.records.measurements import norm_error, scale_error, share_error

if TYPE_CHECKING:
    from crfl_core.records.ledger import Ledger
    from crfl_core.records.threat import Threat, ThreatSettings


class ResolvedThreat(NamedTuple):
    """Threat of a run as the user wrote it, and where the attack that really ran exceeds it."""

    threat: Threat
    uncovered: tuple[str, ...]


def measure_attack(ledger: Ledger) -> RealisedAttack:
    """Measure what the attackers did, from the ledger.

    Sizes are rounded up by the measurement error. Scales and shares are not rounded up: comparisons allow for their
    errors. The poison ratio is the one that amounts to the same poison in equal steps. With weight decay or a proximal
    weight late steps count most, so all poison counts as late.
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
    """Resolve the threat of a run.

    It comes from the `[threat]` settings and the claims of the attack. The claims are verified, not trusted: they are
    compared with the measured attack.
    """
    done = measure_attack(ledger)
    if attack is None or len(done.round) == 0:
        return ResolvedThreat(settings.resolve(None, ledger.facts.rounds), ())
    if attack.scale == "replace":  # other attackers multiply by a number that is known exactly
        done = replace(done, scale=done.scale * (1.0 + scale_error(ledger.facts)))
    with wrap_failures(f"attack: {attack.full_name} failed"):
        claimed = attack.threat(done)
    threat = settings.resolve(claimed, ledger.facts.rounds)
    assumed = threat.enlarge(shares=share_error(ledger), sizes=2.0 * norm_error(ledger.facts))
    return ResolvedThreat(threat, assumed.excess(claimed) or assumed.excess(Attack.threat(attack, done)))


def enlarge_threat(threat: Threat, ledger: Ledger) -> Threat:
    """Enlarge a threat by more than all measurement errors.

    A threat that states exactly what an attack did then covers it, and the numbers hold for every covered attack.
    """
    return threat.enlarge(shares=2.0 * share_error(ledger), sizes=2.0 * norm_error(ledger.facts))
