"""What cells of a sweep can take from each other: a whole training, or its first rounds.

Two configs train the same model, bit for bit, if they differ only in what is asked about it afterwards: threat, votes,
certificates, radii. If they differ in the number of rounds as well, the shorter training is the beginning of the longer
one up to its last round, which has no noise; unless something looks at the number of rounds. A cell that keeps its
distances to a run without the attack need not train that one if another cell does, and keeps its models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from crfl_core.extend import RunConfig
from crfl_experiments.sweeps.cells import Cell
from crfl_experiments.sweeps.training_key import looks_ahead, training_key

Shared = Literal["nothing", "training", "first rounds"]


@dataclass(frozen=True)
class Plan:
    """A cell and what it takes from another one, its `source`.

    `lends`: others start where this one stands before its last round. `twin` is the cell that it keeps its distances
    to.
    """

    cell: Cell
    shares: Shared = "nothing"
    source: str | None = None
    lends: bool = False
    twin: str | None = None


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
    twins = {twin_key(cell): cell.name for cell in cells if keeps_clean_models(cell.config)}
    return [
        replace(plan, twin=twins.get(twin_key(plan.cell))) if plan.cell.config.storage.keep == "distances" else plan
        for plan in (*trained.values(), *others)
    ]


def keeps_clean_models(config: RunConfig) -> bool:
    """Whether others can be compared with a cell, round by round."""
    return config.attack is None and config.storage.keep == "models"


def twin_key(cell: Cell) -> str:
    """The same for cells that differ in their attack, and in what is asked afterwards."""
    return training_key(cell.config.without_attack())
