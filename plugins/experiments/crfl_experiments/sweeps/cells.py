"""Cells of a sweep: the settings of each, its config and name, and which cells train as one stack."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from crfl_core import dump_config, load_config
from crfl_core.config.loading import read_source
from crfl_core.errors import ConfigError
from crfl_core.reporting import config_diff
from crfl_experiments.attack_settings import AttackSettings
from crfl_experiments.sweeps.expressions import sort_links
from crfl_experiments.sweeps.sweep_table import FREE_PREFIX, Choice, Settings, read_choices, settings_outside_table
from crfl_experiments.sweeps.values import (
    Tree,
    config_tree,
    directory_name,
    flat_keys,
    lookup_part,
    parse_value,
    toml_inline,
)

if TYPE_CHECKING:
    from crfl_core.config import LoadedConfig, RunConfig

SWEEP = "sweep"


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: its chosen settings, the linked ones, and the whole config.

    `name` is that of its directory: settings for people, and a digest of the config. Cells of one `stack` train their
    clients together.
    """

    name: str
    settings: Settings
    linked: Settings
    config: RunConfig = field(repr=False)
    stack: str | None = None

    @property
    def columns(self) -> Settings:
        """Return all settings that a table shows."""
        return {**self.settings, **self.linked}

    @property
    def point(self) -> Settings:
        """Return the settings without seeds: cells of one point are repetitions."""
        return {key: value for key, value in self.columns.items() if not config_diff.is_seed(key)}

    @property
    def attack(self) -> AttackSettings | None:
        """Return attackers, attacked rounds and scale; None without an attack."""
        return AttackSettings.read(self.config.model_dump(mode="json", include={"rounds", "attack"}))

    @property
    def title(self) -> str:
        """Return the settings in one line."""
        return ", ".join(f"{key}={toml_inline(value)}" for key, value in self.settings.items()) or "the config itself"


@dataclass(frozen=True)
class Definition:
    """Definition of a sweep: a config, and the table that says what varies. `source` is its name in messages."""

    tree: Tree
    table: Mapping[str, Any]
    source: str = "the config"

    @property
    def name(self) -> str:
        """Return the name of the config."""
        return str(self.tree.get("name", "run"))

    def cells(self) -> list[Cell]:
        """Return every cell once, in the order of the table.

        Raises `ConfigError` before anything is run.
        """
        try:
            seed = self.tree.get("seed", 0)
            found: dict[str, Cell] = {}
            for choice in read_choices(self.table, seed if isinstance(seed, int) else 0):
                cell = make_cell(self.tree, settings_outside_table(self.table), choice)
                found.setdefault(cell.name, cell)
            cells = list(found.values())
            if not self.table.get("together", False):
                return cells
            engines = place_in_stacks([cell.config for cell in cells])
            return [replace(cell, config=one.config, stack=one.stack) for cell, one in zip(cells, engines, strict=True)]
        except ConfigError as error:
            said = str(error).replace("--set ", "the cell with ")  # settings reach the config as overrides do
            raise ConfigError(f"{self.source}: {said}", key=error.key) from error


def define(config: Any = None, overrides: Sequence[str] = (), parts: Mapping[str, Any] | None = None) -> Definition:
    """Read the sweep that a config describes.

    `parts` replace parts of its `[sweep]` table. `overrides` are `key=value` texts that count in every cell.
    """
    tree, _ = read_source(config)
    table = tree.pop(SWEEP, {})
    source = "the default config" if config is None else "the config" if isinstance(config, Mapping) else str(config)
    if not isinstance(table, Mapping):
        raise ConfigError(f"{source}: sweep: must be a table, found {table!r}", key=SWEEP)
    if not overrides:
        return Definition(tree, {**table, **(parts or {})}, source)
    fixed = settings_outside_table(table)
    for override in overrides:
        key, equals, raw = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {override}: write it as key=value, for example --set rounds=10")
        fixed.pop(key.strip(), None)
        fixed[key.strip()] = parse_value(raw.strip())  # behind the others, as overrides count in their order
    return Definition(tree, {**table, "fixed": fixed, **(parts or {})}, source)


def make_cell(tree: Tree, fixed: Settings, choice: Choice) -> Cell:
    """Make the cell of a choice, with all linked settings."""
    values = {**fixed, **choice.settings}
    followed: Settings = {}
    for expression in sort_links(choice.links):
        if expression.key in choice.settings:
            raise ConfigError(f"sweep.linked: {expression.key} is varied as well: leave one of them out")
        values[expression.key] = followed[expression.key] = expression.value(KeyLookup(tree, values).value_of)
    config = load_cell_config(tree, values).config
    digest = sha256(dump_config(config).encode()).hexdigest()
    name = directory_name(dict(sorted(choice.settings.items())))  # files write keys in an order of their own
    return Cell("_".join(filter(None, (name, digest[:8]))), choice.settings, followed, config)


def load_cell_config(tree: Tree, settings: Settings) -> LoadedConfig:
    """Load the config with some settings."""
    return load_config(tree, overrides=[f"{key}={toml_inline(value)}" for key, value in config_keys(settings)])


def config_keys(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Yield the settings that are keys of a config.

    Names that begin with `let.` are left out.
    """
    return ((key, value) for key, value in settings.items() if not key.startswith(FREE_PREFIX))


class KeyLookup:
    """Values that expressions may look up: the chosen ones, then the config with its defaults."""

    def __init__(self, tree: Tree, chosen: Settings) -> None:
        self._tree = tree
        self._chosen = dict(chosen)

    def value_of(self, key: str) -> Any:
        """Return the value of a key.

        Raises `KeyError` with a phrase that says why the key has no value.
        """
        if key in self._chosen:
            return self._chosen[key]
        here: Any = config_tree(load_cell_config(self._tree, self._chosen).config)
        for part in key.split("."):
            here = lookup_part(here, part)
            if here is None:
                raise KeyError(f"{key} is not set in this config{self._offer(key)}")
        return here

    def _offer(self, key: str) -> str:
        known = [*self._chosen, *flat_keys(config_tree(load_cell_config(self._tree, self._chosen).config))]
        near = difflib.get_close_matches(key, known, n=1)
        return f": did you mean {near[0]!r}?" if near else ""


LATER_KEYS = ("name", "threat", "votes", "certificates", "evaluation.radii", "seeds.votes", "storage", "plugins")
"""Keys that no round depends on."""

SERVER_KEYS = ("server", "aggregation", "seeds.noise", "seeds.aggregation", "engine")
"""Keys that clients do not depend on, once they have a model to start from."""

MOST_MODELS = 8
"""Models of a stack. Wider products gain little, and every run of a stack holds the features of the data."""


def training_key(config: RunConfig, *, server: bool = True) -> str:
    """Compute a digest of everything in a config that training depends on.

    Without `server`: of everything that the clients alone depend on, given a model.
    """
    tree = config_tree(config)
    certificates = [one for one in config.certificates if any(name.startswith("crfl_") for name in dir(type(one)))]
    hooked = [one.model_dump(mode="json") for one in certificates]  # a certificate may judge rounds as any plugin may
    for key in (*LATER_KEYS, *(() if server else SERVER_KEYS)):
        *above, last = key.split(".")
        here: Any = tree
        for part in above:
            here = lookup_part(here, part) or {}
        here.pop(last, None)
    return sha256(json.dumps([tree, hooked], sort_keys=True).encode()).hexdigest()


class StackPlace(NamedTuple):
    """A config, and the stack in which it has a place; None if it trains by itself."""

    config: RunConfig
    stack: str | None


def place_in_stacks(configs: Sequence[RunConfig]) -> list[StackPlace]:
    """Give configs places in stacks of models.

    Configs of a stack differ in the server's part alone. Configs with the same training have one place, because their
    bits must be the same.
    """
    families: dict[str, dict[str, list[int]]] = {}
    for number, config in enumerate(configs):
        if config.engine.configured_as == "local":
            family = families.setdefault(training_key(config, server=False), {})
            family.setdefault(training_key(config), []).append(number)
    found = [StackPlace(config, None) for config in configs]
    for key, trainings in families.items():
        for first, models in split_evenly(len(trainings)):
            for place, numbers in enumerate(list(trainings.values())[first : first + models]):
                for number in numbers:
                    config = with_stack_engine(configs[number], models, place)
                    found[number] = StackPlace(config, f"{key[:16]}-{first}")
    return found


def split_evenly(count: int) -> list[tuple[int, int]]:
    """Split models into as few stacks as possible of nearly equal size.

    A stack is a pair (first, number). One model alone makes no stack.

    >>> split_evenly(10)
    [(0, 5), (5, 5)]
    >>> split_evenly(9), split_evenly(1)
    ([(0, 5), (5, 4)], [])
    """
    stacks = -(-count // MOST_MODELS)
    ends = [-(-count * number // stacks) for number in range(stacks + 1)] if count > 1 else []
    return [(first, last - first) for first, last in pairwise(ends)]


def with_stack_engine(config: RunConfig, models: int, place: int) -> RunConfig:
    """Copy a config with the engine of a place in a stack."""
    tree = config_tree(config)
    chunk = tree["engine"].get("chunk_clients")
    tree["engine"] = {"type": "stacked", "models": models, "place": place}
    if chunk is not None:
        tree["engine"]["chunk_clients"] = chunk
    return load_config(tree).config
