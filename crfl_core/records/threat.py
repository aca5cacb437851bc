"""The threat: what attackers are assumed to do. Every certified number is conditional on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from crfl_core.records.schedules import ThreatRounds, expand_rounds, max_attacked_rounds
from crfl_core.records.table import Table

Poison = Literal["features", "labels", "features+labels", "replacement", "update"]
CleanWorld = Literal["scaled", "honest"]

SCALE_TOLERANCE = 1e-5
"""Relative error up to which the measured scale of an update counts as the stated one."""


class Threat(Table):
    """Complete threat: who attacks, when, and how strongly.

    `clients` are ids, or a number of unknown clients (then the worst ones are assumed). All of `rounds` are attacked,
    or at most `rounds_at_most` of them, unknown which; a certificate that ignores that number assumes more. `delta`
    bounds the change of an input in scaled space; None means that it is what the certificate answers. `clean_world`
    says what the attacked run is compared with: "scaled" is the paper's choice, in which attackers train on clean data
    and still multiply their update by `scale`; in "honest" they do not.
    """

    clients: int | tuple[int, ...]
    rounds: tuple[int, ...]
    rounds_at_most: int | None = Field(None, ge=1)
    poison: Poison = "features+labels"
    poison_ratio: float = Field(1.0, ge=0, le=1)
    delta: float | None = Field(None, ge=0)
    scale: float = Field(1.0, ge=1, allow_inf_nan=False)
    input_bound: float | None = Field(None, gt=0)
    clean_world: CleanWorld = "honest"

    @property
    def attackers(self) -> int:
        """Return the number of attacking clients R."""
        return self.clients if isinstance(self.clients, int) else len(self.clients)

    @property
    def attacked_rounds(self) -> int:
        """Return the largest number of attacked rounds."""
        return len(self.rounds) if self.rounds_at_most is None else min(self.rounds_at_most, len(self.rounds))

    @property
    def rounds_text(self) -> str:
        """Return the attacked rounds in a few words.

        >>> Threat(clients=1, rounds=(10,)).rounds_text
        'round 10'
        >>> Threat(clients=1, rounds=(1, 2, 3), rounds_at_most=2).rounds_text
        'any 2 of rounds 1..3'
        """
        first = min(self.rounds, default=0)
        last = max(self.rounds, default=0)
        total = len(self.rounds)
        named = f"{first}..{last}" if total > 1 and last - first == total - 1 else ", ".join(map(str, self.rounds))
        if total > 8 and "," in named:
            named = f"{first}, ..., {last} ({total} in all)"
        if self.attacked_rounds == total:
            return f"round {named}" if total == 1 else f"rounds {named}"
        return f"any {'one' if self.attacked_rounds == 1 else self.attacked_rounds} of rounds {named}"

    def has_too_many_rounds(self, rounds: Iterable[int]) -> bool:
        """Return whether attacks in all of these rounds exceed `rounds_at_most`."""
        return self.rounds_at_most is not None and len(set(rounds)) > self.rounds_at_most

    def excess(self, realised: Threat) -> tuple[str, ...]:
        """Return the ways in which a real attack exceeds this threat.

        The comparison is exact. The tuple is empty if this threat covers the attack.

        >>> assumed = Threat(clients=1, rounds=(10,), poison_ratio=0.05, scale=10)
        >>> assumed.excess(assumed.model_copy(update={"scale": 50.0}))
        ('scale 50 is above the assumed 10',)
        """
        found: list[str] = []
        if isinstance(self.clients, int):
            if realised.attackers > self.clients:
                found.append(f"{realised.attackers} clients attacked, {self.clients} assumed")
        elif not isinstance(realised.clients, int) and (extra := set(realised.clients) - set(self.clients)):
            found.append(f"clients {sorted(extra)} attacked and are not among the assumed ones")
        if extra_rounds := set(realised.rounds) - set(self.rounds):
            found.append(f"rounds {sorted(extra_rounds)} were attacked and are not among the assumed ones")
        if self.has_too_many_rounds(realised.rounds):
            found.append(f"{len(set(realised.rounds))} rounds were attacked, at most {self.rounds_at_most} assumed")
        for name in ("poison_ratio", "scale", "delta"):
            limit = getattr(self, name)
            value = getattr(realised, name)
            if limit is not None and value is not None and value > limit:
                found.append(f"{name} {value:g} is above the assumed {limit:.4g}")
        if not covers(self.poison, realised.poison):
            found.append(f"poison {realised.poison!r} is not covered by {self.poison!r}")
        return tuple(found)

    def enlarge(self, shares: float, sizes: float) -> Threat:
        """Enlarge all shares and sizes by a relative amount.

        A scale of 1 stays 1.

        >>> Threat(clients=1, rounds=(10,), poison_ratio=0.05, scale=10).enlarge(shares=0.5, sizes=0.1).scale
        11.0
        """
        changes: dict[str, float] = {"poison_ratio": min(1.0, self.poison_ratio * (1.0 + shares))}
        for name in ("delta", "input_bound", "scale"):
            value = getattr(self, name)
            if value is not None and (name, value) != ("scale", 1.0):
                changes[name] = value * (1.0 + sizes)
        return self.model_copy(update=changes)


def covers(assumed: Poison, realised: Poison) -> bool:
    """Return whether protection against one kind of poison includes another.

    >>> covers("replacement", "labels"), covers("features", "features+labels")
    (True, False)
    """
    order: dict[Poison, set[Poison]] = {
        "features": {"features"},
        "labels": {"labels"},
        "features+labels": {"features", "labels", "features+labels"},
        "replacement": {"features", "labels", "features+labels", "replacement"},
        "update": {"features", "labels", "features+labels", "replacement", "update"},
    }
    return realised in order[assumed]


class ThreatSettings(Table):
    """The `[threat]` table of a config: keys that are not set come from the attack, else from the defaults."""

    clients: int | tuple[int, ...] | None = Field(None, description="ids, or a number of unknown clients")
    rounds: ThreatRounds | None = Field(
        None,
        description="attacked rounds; 'any': one of them, unknown which; {any = k}: at most k; 'every': all; unset: "
        "the attack's, without one the final round",
    )
    poison: Poison | None = Field(None, description="what an attacker changes")
    poison_ratio: float | None = Field(None, ge=0, le=1, description="poisoned share of a batch, q/n")
    delta: float | None = Field(None, ge=0, description="bound on the change of an input")
    scale: float | None = Field(None, ge=1, allow_inf_nan=False, description="factor on a malicious update, gamma")
    input_bound: float | None = Field(
        None, gt=0, description="bound on the norm of a poisoned input, behind the feature maps"
    )
    clean_world: CleanWorld | None = Field(None, description="what the attacked run is compared with")

    def resolve(self, attack: Threat | None, total_rounds: int) -> Threat:
        """Return the complete threat of a run.

        `attack` is what its attack did, if it had one.

        >>> ThreatSettings(scale=5).resolve(None, total_rounds=30).rounds
        (30,)
        """
        resolved = {} if attack is None else attack.model_dump(exclude={"delta"})
        mine = {key: value for key in type(self).model_fields if (value := getattr(self, key)) is not None}
        if self.rounds is not None:
            mine |= {
                "rounds": expand_rounds(self.rounds, total_rounds),
                "rounds_at_most": max_attacked_rounds(self.rounds),
            }
        return Threat.model_validate({"clients": 1, "rounds": (total_rounds,)} | resolved | mine)
