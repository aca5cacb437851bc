"""The config of a run, line by line, and where each value came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from crfl_core.extend import CrflError, RunResult, explained, load_config

DEFAULT = "default"


class Setting(NamedTuple):
    """A key, its value as TOML writes it, and where it was written."""

    key: str
    value: str
    origin: str


def settings(run: RunResult) -> list[Setting]:
    """Every setting of a run.

    A run keeps its complete config. Where each value was written before, `environment.json` says; of runs that did not
    record this, only what differs from the defaults is told apart.
    """
    lines = [line.partition(" = ") for line, _ in explained(load_config(run.config))]
    recorded = run.directory.read_json("environment.json").get("origins")
    if isinstance(recorded, Mapping):
        return [Setting(key, value, origin_of(key, recorded)) for key, _, value in lines]
    changed = keys_of(changes(run))
    return [
        Setting(key, value, "set in the config" if key in changed else DEFAULT)
        for key, _, value in lines
    ]


def origin_of(key: str, recorded: Mapping[str, Any]) -> str:
    """Where a key was written, or the table around it."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        origin = recorded.get(".".join(parts[:length]))
        if isinstance(origin, str):
            return origin
    return DEFAULT


def changes(run: RunResult) -> Any:
    """What differs from the defaults."""
    try:
        return run.config.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    except (CrflError, ValueError):
        return {}


def keys_of(tree: Any, path: Sequence[str] = ()) -> set[str]:
    """The keys of all values in a tree of tables; items of a list of tables are numbered.

    >>> sorted(keys_of({"a": {"b": 1}, "c": [{"d": 2}]}))
    ['a.b', 'c.0.d']
    """
    if isinstance(tree, Mapping) and tree:
        return {key for name, value in tree.items() for key in keys_of(value, (*path, name))}
    if isinstance(tree, list) and tree and all(isinstance(item, Mapping) for item in tree):
        return {key for place, item in enumerate(tree) for key in keys_of(item, (*path, str(place)))}
    return {".".join(path)}
