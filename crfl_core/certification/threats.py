"""From what the attackers of a run did to the threat that its certificates assume."""

from __future__ import annotations

import numpy as np

from crfl_core.certification import formulas
from crfl_core.errors import failures_named
from crfl_core.kinds.attack import Attack, Realised
from crfl_core.ledger import Ledger
from crfl_core.threat import Threat, ThreatSettings


def realised(ledger: Ledger) -> Realised:
    """What the attackers did, as the ledger measured it.

    The poison ratio is the one that would amount to the same poison if it were alike in all steps. Weight decay makes
    late steps count most, so there all poison is taken for late.
    """
    rows = ledger.clients.take(ledger.clients.attacking)
    steps = formulas.effective_steps(rows.learning_rate, np.maximum(1, rows.steps), rows.weight_decay)
    return Realised(
        round=rows.round,
        client=rows.client,
        poison_ratio=rows.poisoned_share / steps,
        delta=rows.delta,
        flips=rows.label_flips,
        scale=rows.scale,
    )


def resolve(settings: ThreatSettings, attack: Attack | None, ledger: Ledger) -> tuple[Threat, tuple[str, ...]]:
    """The threat of a run, and where the attack that was run goes beyond it."""
    done = realised(ledger)
    if attack is None or len(done.round) == 0:
        return settings.resolve(None, ledger.facts.rounds), ()
    with failures_named(f"attack: {attack.full_name} failed"):
        own = attack.threat(done)
    threat = settings.resolve(own, ledger.facts.rounds)
    return threat, threat.excess(own)
