"""The `[sweep]` table of a config: which settings are tried, as a list of cells.

    [sweep]
    seeds = 5                                         # seeds of the run, counted from its own; or a list
    grid = { "attack.scale" = [10, 50, 100] }         # every value with every other
    zip = { "partition.clients" = [20, 50], "attack.clients" = [[1], [1, 2]] }     # first with first, and so on
    linked = { "training.steps" = "600 // partition.clients" }                     # follows from other keys
    fixed = { rounds = 50 }                           # the same in every cell
    together = true                                   # cells that differ in the server's part alone train as one stack

    [[sweep.list]]                                    # one after the other; each may hold a grid of its own
    aggregation = "rfa"

Sibling tables form a Cartesian product: every cell of the grid with every one of `zip` and of `list`. Keys that begin
with `let.` are names for expressions and tables, not settings.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from crfl_core.errors import ConfigError
from crfl_experiments.sweeps.expressions import Expression

PARTS = ("grid", "zip", "list", "linked", "seeds", "fixed", "together")
FREE_PREFIX = "let."
"""Prefix of keys that only expressions and tables know."""

MOST_CELLS = 10_000

Settings = dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """One cell before its links are computed: the chosen values, and the expressions of linked keys."""

    settings: Settings
    links: dict[str, Expression]

    def with_links(self, links: Mapping[str, Expression]) -> Choice:
        """Return the choice with more links; its own take precedence."""
        return Choice(self.settings, {**links, **self.links})


def read_choices(table: Mapping[str, Any], first_seed: int) -> list[Choice]:
    """Return every cell of a `[sweep]` table in written order.

    The last axis varies fastest. Raises `ConfigError` for anything invalid, before any run.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"sweep: must be a table, found {table!r}", key="sweep")
    unknown = [key for key in table if key not in PARTS]
    if unknown:
        near = difflib.get_close_matches(unknown[0], PARTS, n=1)
        offer = f"did you mean {near[0]!r}?" if near else f"it holds {', '.join(PARTS)}"
        raise ConfigError(f"sweep.{unknown[0]}: there is no such part of a sweep: {offer}", key="sweep")
    if not isinstance(table.get("together", False), bool):
        raise ConfigError(f"sweep.together: must be true or false, found {table['together']!r}", key="sweep")
    found = read_space(table, "sweep")
    if "seeds" not in table:
        return found
    seeds = seed_axis(table["seeds"], first_seed)
    return combine_axes([found, seeds], "sweep")


def read_space(table: Mapping[str, Any], where: str) -> list[Choice]:
    """Return the cells of a table with `grid`, `zip`, `list` and `linked`."""
    axes: list[list[Choice]] = []
    for key, values in read_columns(table.get("grid", {}), f"{where}.grid").items():
        axes.append([Choice({key: value}, {}) for value in values])
    together = table.get("zip", {})
    for number, one in enumerate(together if isinstance(together, list | tuple) else [together]):
        axes += zip_axis(one, f"{where}.zip" if isinstance(together, Mapping) else f"{where}.zip.{number}")
    if "list" in table:
        axes.append(list_axis(table["list"], f"{where}.list"))
    links = read_links(table.get("linked", {}), f"{where}.linked")
    return [choice.with_links(links) for choice in combine_axes(axes, where)]


def combine_axes(axes: Sequence[Sequence[Choice]], where: str) -> list[Choice]:
    """Combine every cell of one axis with every cell of all others."""
    count = math.prod(map(len, axes))
    if count > MOST_CELLS:
        raise ConfigError(
            f"{where}: has {count:,} cells, at most {MOST_CELLS:,} are run at once: leave out values, or vary some "
            "keys together with zip"
        )
    cells = []
    for chosen in product(*axes):
        settings: Settings = {}
        links: dict[str, Expression] = {}
        for one in chosen:
            if twice := [key for key in one.settings if key in settings]:
                raise ConfigError(f"{where}: {twice[0]} is set twice in one cell: leave one of them out", key=twice[0])
            settings |= one.settings
            links |= one.links
        cells.append(Choice(settings, links))
    return cells


def zip_axis(table: Any, where: str) -> list[list[Choice]]:
    """Return the axis along which several keys change together.

    The list is empty if there are no keys.
    """
    columns = read_columns(table, where)
    lengths = {key: len(values) for key, values in columns.items()}
    if len(set(lengths.values())) > 1:
        counted = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        raise ConfigError(f"{where}: all keys need as many values: {counted}", key=where)
    rows = zip(*columns.values(), strict=True)
    return [[Choice(dict(zip(columns, row, strict=True)), {}) for row in rows]] if columns else []


def list_axis(items: Any, where: str) -> list[Choice]:
    """Return the cells of a list one after the other.

    Each item may be a table of cells.
    """
    if not isinstance(items, list | tuple) or not items or not all(isinstance(item, Mapping) for item in items):
        raise ConfigError(f"{where}: must be a list of tables with settings, and not empty", key=where)
    found = []
    for number, item in enumerate(items):
        here = f"{where}.{number}"
        nested = {key: value for key, value in item.items() if key in PARTS}
        if shared := [part for part in ("seeds", "fixed") if part in nested]:
            raise ConfigError(f"{here}.{shared[0]}: is for all cells: write sweep.{shared[0]}", key=here)
        own = {key: value for key, value in item.items() if key not in PARTS}
        found += combine_axes([[Choice(flatten_settings(own), {})], read_space(nested, here)], here)
    return found


def seed_axis(seeds: Any, first: int) -> list[Choice]:
    """Return the axis of seeds."""
    whole = isinstance(seeds, int) and not isinstance(seeds, bool)
    numbers = list(range(first, first + seeds)) if whole else seeds
    if not isinstance(numbers, list | tuple) or not numbers or not all(isinstance(one, int) for one in numbers):
        raise ConfigError(
            f"sweep.seeds: found {seeds!r}, needs how many seeds, 1 or more, or a list", key="sweep.seeds"
        )
    return [Choice({"seed": number}, {}) for number in numbers]


def settings_outside_table(table: Mapping[str, Any]) -> Settings:
    """Return the settings that are the same in every cell."""
    fixed = table.get("fixed", {})
    if not isinstance(fixed, Mapping):
        raise ConfigError(f"sweep.fixed: must be a table of settings, found {fixed!r}", key="sweep.fixed")
    return flatten_settings(fixed)


def read_columns(table: Any, where: str) -> dict[str, list[Any]]:
    """Return the values of every key.

    Tables within tables are part of the key.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: must be a table of keys with lists of values, found {table!r}", key=where)
    found: dict[str, list[Any]] = {}
    for key, values in table.items():
        if isinstance(values, Mapping):
            found |= {f"{key}.{below}": inner for below, inner in read_columns(values, f"{where}.{key}").items()}
        elif not isinstance(values, list | tuple):
            raise ConfigError(f"{where}: {key} = {values!r}: needs a list of values, such as [1, 2]", key=str(key))
        elif not values:
            raise ConfigError(f"{where}: {key} = []: has no values: give at least one, or leave the key out", key=key)
        else:
            found[key] = list(values)
    return found


def flatten_settings(settings: Mapping[str, Any]) -> Settings:
    """Return settings under dotted keys.

    A table that names a plugin stays whole, with its options.
    """
    found: Settings = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value and "type" not in value:
            found |= {f"{key}.{below}": inner for below, inner in flatten_settings(value).items()}
        else:
            found[key] = value
    return found


def read_links(table: Any, where: str) -> dict[str, Expression]:
    """Return the expressions of linked keys."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: must be a table of keys with expressions, found {table!r}", key=where)
    links = {}
    for key, text in flatten_settings(table).items():
        if not isinstance(text, str | int | float) or isinstance(text, bool):
            raise ConfigError(f"{where}: {key} = {text!r}: write the expression as a text", key=key)
        links[key] = Expression(key, str(text))
    return links
