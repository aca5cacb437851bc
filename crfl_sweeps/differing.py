"""In what configs differ, in keys that a person would name."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from crfl_core.extend import RunDirectory
from crfl_sweeps.cells import is_seed

NOT_ABOUT_RESULTS = ("name", "device", "engine", "storage", "plugins", "trackers")
UNSET = "unset"
"""Of a key that a config does not have."""
Flat = dict[str, Any]


def config_of(directory: RunDirectory) -> dict[str, Any]:
    """The config of a run as a table, whoever wrote its plugins."""
    try:
        return tomllib.loads(directory.load("config.toml").decode())
    except ValueError as error:
        raise directory.damaged("config.toml", error) from error


def flattened(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every value under its dotted key; items of lists of tables are numbered."""
    for key, value in tree.items():
        here = f"{above}{key}"
        if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            value = {str(number): one for number, one in enumerate(value)}
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{here}.")
        else:
            yield here, value


def differences(configs: Sequence[Mapping[str, Any]]) -> list[Flat]:
    """What each config says about the keys in which they differ, seeds included.

    Of plugins of different types the type alone is compared: their options are not the same questions.
    """
    flat = [dict(flattened(config)) for config in configs]
    keys = dict.fromkeys(key for one in flat for key in one if key.partition(".")[0] not in NOT_ABOUT_RESULTS)
    varied = [key for key in keys if any(one.get(key) != flat[0].get(key) for one in flat)]
    chosen = [key.removesuffix("type") for key in varied if key.rpartition(".")[2] == "type"]
    shown = [key for key in varied if key.endswith("type") or not key.startswith(tuple(chosen) or ("\0",))]
    return [{key: one.get(key, UNSET) for key in shown} for one in flat]


def parts(settings: Mapping[str, Any]) -> tuple[Flat, tuple[tuple[str, Any], ...]]:
    """Settings without seeds, and the seeds."""
    point = {key: value for key, value in settings.items() if not is_seed(key)}
    return point, tuple(sorted((key, value) for key, value in settings.items() if is_seed(key)))
