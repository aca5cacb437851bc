"""The config of a run, line by line, and where each value came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from crfl_core.cli.explanation import explained
from crfl_core.config import RunConfig, load_config
from crfl_core.records.table import Table
from crfl_core.runs.results import RunResult

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
    recorded = run.directory.read_json("environment.json").get("origins")
    written = recorded if isinstance(recorded, Mapping) else {}
    loaded = load_config(run.path / "config.toml", registry=run.registry)  # without the plugins that are not here
    return [
        Setting(line.key, line.text, origin_of(line.key, written, is_default(run.config, line.key.split("."))))
        for line in explained(loaded)
    ]


def origin_of(key: str, written: Mapping[str, Any], default: bool) -> str:
    """Where a key was written or, if its value is no default, a table around it.

    >>> origin_of("attack.scale", {"attack": "a.toml"}, False), origin_of("attack.target", {"attack": "a.toml"}, True)
    ('a.toml', 'default')
    """
    exact = key.split(".")
    single = [part for part in exact if part != "0"]  # a single table may stand for a list of one
    shortest = [len(exact), len(single)] if default else [1, 1]
    places = (
        written.get(".".join(parts[:length]))
        for parts, least in zip((exact, single), shortest, strict=True)
        for length in range(len(parts), least - 1, -1)
    )
    unknown = DEFAULT if default or written else "the config"
    return next((str(origin) for origin in places if origin is not None), unknown)


def is_default(config: RunConfig, path: Sequence[str]) -> bool:
    """Whether a value is what it would be if nobody had written it."""
    here: Any = config
    for step in path[:-1]:
        here = here[int(step)] if isinstance(here, tuple) and step.isdecimal() else getattr(here, step, None)
    field = type(here).model_fields.get(path[-1]) if isinstance(here, Table) else None
    return field is not None and bool(getattr(here, path[-1]) == field.get_default(call_default_factory=True))
