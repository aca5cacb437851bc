"""What cells of a sweep can take from each other: a whole training, or its first rounds.

Two configs train the same model, bit for bit, if they differ only in what is asked about it afterwards: threat, votes,
certificates, radii. If they differ in the number of rounds as well, the shorter training is the beginning of the longer
one up to its last round, which has no noise; unless something looks at the number of rounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from crfl_core.extend import Plugin, PluginError, Registry, RunConfig
from crfl_sweeps.cells import Cell, item, written

AFTERWARDS = ("name", "threat", "votes", "certificates", "evaluation.radii", "seeds.votes", "storage", "plugins")
"""Keys that no round depends on."""

OWN = "crfl"
LOOK_AHEAD = frozenset({("attack", "certificate-seeking")})
"""Plugins of this distribution that look at the number of rounds. Of others nobody knows."""

Shared = Literal["nothing", "training", "first rounds"]


@dataclass(frozen=True)
class Plan:
    """A cell and what it takes from another one, its `source`.

    `lends`: others start where this one stands before its last round.
    """

    cell: Cell
    shares: Shared = "nothing"
    source: str | None = None
    lends: bool = False


def plans(cells: Sequence[Cell]) -> list[Plan]:
    """What every cell takes from which other, in the order in which they should be started."""
    families: dict[str, list[Cell]] = {}
    for cell in cells:
        families.setdefault(training_key(cell.config), []).append(cell)
    lines: dict[str, list[Cell]] = {}
    for key, (first, *_) in families.items():
        free = not looks_ahead(first.config)
        lines.setdefault(training_key(first.config, rounds=False) if free else key, []).append(first)
    trained: dict[str, Plan] = {}
    for line in lines.values():
        ordered = sorted(line, key=lambda cell: cell.config.rounds)
        for place, cell in enumerate(ordered):
            before = ordered[place - 1].name if place and ordered[place - 1].config.rounds > 1 else None
            shares: Shared = "nothing" if before is None else "first rounds"
            lends = place + 1 < len(ordered) and cell.config.rounds > 1
            trained[cell.name] = Plan(cell, shares, before, lends)
    others = [Plan(cell, "training", family[0].name) for family in families.values() for cell in family[1:]]
    return [*trained.values(), *others]


def training_key(config: RunConfig, *, rounds: bool = True) -> str:
    """A digest of everything in a config that training depends on, with or without the number of rounds."""
    tree = written(config)
    certificates = [one for one in config.certificates if any(name.startswith("crfl_") for name in dir(type(one)))]
    hooked = [one.model_dump(mode="json") for one in certificates]  # a certificate may judge rounds as any plugin may
    for key in (*AFTERWARDS, *(() if rounds else ("rounds",))):
        *above, last = key.split(".")
        here: Any = tree
        for part in above:
            here = item(here, part) or {}
        here.pop(last, None)
    return sha256(json.dumps([tree, hooked], sort_keys=True).encode()).hexdigest()


def looks_ahead(config: RunConfig) -> bool:
    """Whether a round may depend on how many there are: rates that are found for all of them, or some plugin."""
    rate = written(config)["training"]["learning_rate"]
    if isinstance(rate, dict) and "type" in rate:
        return True
    registry = Registry()
    return any(may_look_ahead(registry, kind, plugin) for kind, plugin in training_plugins(config))


def training_plugins(config: RunConfig) -> Iterator[tuple[str, Plugin]]:
    """The plugins that take part in rounds."""
    return ((kind, plugin) for kind, plugin in config.used_plugins() if kind != "certificate")


def may_look_ahead(registry: Registry, kind: str, plugin: Plugin) -> bool:
    """Whether a plugin may make something of the number of rounds, as far as is known."""
    try:
        found = registry.find(kind, plugin.configured_as)
    except PluginError:
        return True
    return found.distribution != OWN or (kind, found.name) in LOOK_AHEAD
