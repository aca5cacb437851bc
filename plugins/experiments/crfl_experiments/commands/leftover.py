"""The paper's Theorem 2 as numbers of a finished run: what its attack adds to the divergence, and what rounds leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crfl_core import formulas
from crfl_core.errors import ConfigError
from crfl_core.records.threat import Threat
from crfl_core.runs.results import RunResult

Array = NDArray[np.float64]
PAPER = "paper"


@dataclass(frozen=True)
class Leftover:
    """The bound on the KL divergence of the attacked and the clean model after every round, 0 before the attack.

    `budgets` are the divergences that the votes of each test sample tolerate by Theorem 1, by test set; 0 of those that
    have no majority.
    """

    attacked: tuple[int, ...]
    deltas: tuple[float, ...]
    by_round: tuple[float, ...]
    budgets: dict[str, tuple[float, ...]]

    @property
    def final(self) -> float:
        """What is left in the end."""
        return self.by_round[-1]

    def covered(self, test_set: str) -> float:
        """The share of a test set whose votes tolerate what is left."""
        return float((np.array(self.budgets[test_set]) >= max(self.final, np.finfo(float).tiny)).mean())


def leftover(run: RunResult, deltas: Sequence[float] = ()) -> Leftover:
    """Theorem 2 for the threat of a run, with a delta for every attacker, the one that was measured if none is given.

    Several attacked rounds are all attacked: an upper bound where the threat says "at most".
    """
    votes = [one for one in run.certified if one.certificate == PAPER]
    if not votes:
        raise ConfigError(f"{run.path}: has no certificate 'paper', whose divergence this is: run it with one")
    threat = run.threat
    ledger = run.ledger
    added = np.zeros(ledger.facts.rounds)
    used: tuple[float, ...] = ()
    for number in threat.rounds:
        strengths, measured = attackers_of(run, threat, number)
        used = matched(run, tuple(deltas) or tuple(map(float, measured)), len(strengths))
        final = number == ledger.facts.rounds
        added[number - 1] = formulas.attack_divergence(
            used,
            noise_std=ledger.facts.test_noise_std if final else ledger.round(number).noise_std,
            lipschitz=formulas.gradient_lipschitz(ledger.round(number).clip_norm),
            strengths=strengths,
        )
    noises = [record.noise_std for record in ledger.rounds]
    noises[-1] = ledger.facts.test_noise_std
    by_round = formulas.divergence_by_round(added, [record.clip_norm for record in ledger.rounds], noises)
    budgets = {
        one.test_set: tuple(map(float, formulas.kl_budget(one.guarantee.p_a, one.guarantee.p_b))) for one in votes
    }
    return Leftover(threat.rounds, used, tuple(map(float, by_round)), budgets)


def attackers_of(run: RunResult, threat: Threat, number: int) -> tuple[Array, Array]:
    """S_i of the attackers in a round, the worst if only their number is assumed, and what they moved samples by."""
    rows = run.ledger.clients.of_round(number)
    each = rows.weight_bound * threat.scale * rows.learning_rate * rows.steps * threat.poison_ratio
    chosen = np.argsort(-each, kind="stable")[: threat.clients] if isinstance(threat.clients, int) else None
    kept = np.isin(rows.client, threat.clients) if chosen is None else chosen
    return each[kept], rows.delta[kept]


def matched(run: RunResult, deltas: tuple[float, ...], attackers: int) -> tuple[float, ...]:
    """A delta for every attacker; one for all is enough."""
    found = deltas if len(deltas) == attackers else deltas * attackers
    if len(found) != attackers:
        raise ConfigError(f"--delta: give one, or one for each of the {attackers} attackers, found {len(deltas)}")
    if not any(found):
        raise ConfigError(f"{run.path}: nobody moved a sample in the attacked round: say how far with --delta")
    return found
