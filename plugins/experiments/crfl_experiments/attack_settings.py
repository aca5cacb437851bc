"""Attackers, attacked rounds and scale of runs, which should be the same if runs are compared."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from crfl_core.reporting.verdict import numbers_text

MOST_VALUES = 6
"""Of more different values the first two and the last are named."""


class AttackSettings(NamedTuple):
    """Settings that attacks of every type have, in words."""

    attackers: str
    rounds: str
    scale: str

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> AttackSettings | None:
        """Read the settings of a complete config as plain data.

        The result is None without an attack.

        >>> rounds = {"first": 1, "every": 1}
        >>> attack = {"clients": [0, 1, 2], "rounds": rounds, "scale": 10.0}
        >>> print(AttackSettings.read({"rounds": 20, "attack": attack}))
        3 attackers (clients 0-2), rounds 1-20, scale 10
        """
        attack = config.get("attack")
        if not isinstance(attack, Mapping):
            return None
        clients = attack.get("clients", 1)
        number = clients if isinstance(clients, int) else len(clients)
        who = "drawn" if isinstance(clients, int) else numbers_text("client", clients)
        rounds = attack.get("rounds", [1])
        if isinstance(rounds, Mapping):
            last = rounds.get("last") or config["rounds"]
            rounds = range(rounds.get("first", 1), last + 1, rounds.get("every", 1))
        scale = attack.get("scale", 1.0)
        return cls(
            f"{number} attacker{'s' * (number != 1)} ({who})",
            numbers_text("round", rounds),
            f"scale {scale:g}" if isinstance(scale, int | float) else f"scale {scale!r}",
        )

    def __str__(self) -> str:
        return ", ".join(self)


SETTLED_BY = {"attackers": {"attack.clients"}, "rounds": {"attack.rounds", "rounds"}, "scale": {"attack.scale"}}
"""The keys of a config that a sweep varies if cells should differ in these settings."""


def attack_lines(attacks: Iterable[AttackSettings | None], varied: Collection[str]) -> list[str]:
    """Return the attacks of several runs on one line.

    A warning comes first if the attacks differ and no `varied` key says so.

    >>> one = AttackSettings("1 attacker (client 0)", "round 1", "scale 1")
    >>> attack_lines([one, None, one._replace(scale="scale 10")], ["attack.scale"])
    ['attack: 1 attacker (client 0), round 1, scale 1 or scale 10; or none']
    """
    found = list(dict.fromkeys(attacks))
    real = [attack for attack in found if attack is not None]
    if not real:
        return ["attack: none"]
    note = difference_note(real, varied)
    parts = ", ".join(either(values) for values in zip(*real, strict=True))
    return [*([f"warning: {note}"] if note else []), f"attack: {parts}{'; or none' if None in found else ''}"]


def difference_note(attacks: Sequence[AttackSettings], varied: Collection[str]) -> str:
    """Return a note about attack differences that no varied key sets.

    The note is empty if there are none.

    >>> one = AttackSettings("1 attacker (client 0)", "round 1", "scale 1")
    >>> difference_note([one, one._replace(scale="scale 10")], ["attack.type"])
    'attacks differ in what no key varies, and are not comparable: scale 1 or scale 10'
    """
    columns = {name: [getattr(attack, name) for attack in attacks] for name in SETTLED_BY}
    parts = [
        either(values)
        for name, values in columns.items()
        if len(set(values)) > 1 and not SETTLED_BY[name] & set(varied)
    ]
    return f"attacks differ in what no key varies, and are not comparable: {'; '.join(parts)}" if parts else ""


def either(values: Sequence[str]) -> str:
    """Join different values with "or".

    If there are many, the text has the first two and the last.
    """
    different = list(dict.fromkeys(values))
    if len(different) > MOST_VALUES:
        different = [*different[:2], "...", different[-1]]
    return " or ".join(different)
