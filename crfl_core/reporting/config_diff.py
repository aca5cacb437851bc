"""Differences between configs, as dotted keys."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crfl_core.runs.run_directory import RunDirectory

NOT_ABOUT_RESULTS = ("name", "device", "engine", "storage", "plugins", "trackers")
UNSET = "unset"
"""Of a key that a config does not have."""
Flat = dict[str, Any]


def read_config(directory: RunDirectory) -> dict[str, Any]:
    """Read the config of a run as a table.

    Its plugins need not be installed.
    """
    try:
        return tomllib.loads(directory.read_unverified("config.toml").decode())
    except ValueError as error:
        raise directory.damage_error("config.toml", error) from error


def flatten(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value under its dotted key.

    Items of lists of tables are numbered.

    >>> dict(flatten({"server": {"clip_norm": 2.0}, "aggregation": [{"type": "rfa"}]}))
    {'server.clip_norm': 2.0, 'aggregation.0.type': 'rfa'}
    """
    for key, value in tree.items():
        here = f"{above}{key}"
        if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            value = {str(number): one for number, one in enumerate(value)}
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{here}.")
        else:
            yield here, value


def differences(configs: Sequence[Mapping[str, Any]]) -> list[Flat]:
    """Return each config's values for the keys in which they differ.

    Seeds are included. Options of a plugin are compared among configs with plugins of the same types: those of others
    are other questions.

    >>> far, near = ({"attack": {"type": "scaled", "scale": scale, "seen": 1}} for scale in (9, 2))
    >>> differences([far, near, {"attack": {"type": "flipped", "seen": 2}}])[1:]
    [{'attack.type': 'scaled', 'attack.scale': 2}, {'attack.type': 'flipped', 'attack.scale': 'unset'}]
    """
    flat = [dict(flatten(config)) for config in configs]
    keys = dict.fromkeys(key for one in flat for key in one if key.partition(".")[0] not in NOT_ABOUT_RESULTS)
    varied = [key for key in keys if is_varied(key, flat)]
    types = [key for key in varied if key.rpartition(".")[2] == "type"]
    shown = []
    for key in varied:
        above = [one for one in types if one != key and key.startswith(one.removesuffix("type"))]
        alike: dict[str, list[Flat]] = {}
        for one in flat:
            alike.setdefault(repr([one.get(kind) for kind in above]), []).append(one)
        if any(is_varied(key, group) for group in alike.values()):
            shown.append(key)
    return [{key: one.get(key, UNSET) for key in shown} for one in flat]


def is_varied(key: str, configs: Sequence[Flat]) -> bool:
    """Return whether not all configs say the same about a key."""
    return any(one.get(key) != configs[0].get(key) for one in configs)


def is_seed(key: str) -> bool:
    """Return whether a key changes nothing but random numbers."""
    return key == "seed" or key.startswith("seeds.")


def split_seeds(settings: Mapping[str, Any]) -> tuple[Flat, tuple[tuple[str, Any], ...]]:
    """Split settings into those without seeds, and the seeds."""
    point = {key: value for key, value in settings.items() if not is_seed(key)}
    return point, tuple(sorted((key, value) for key, value in settings.items() if is_seed(key)))
