"""Which configs train alike, by a digest of everything that rounds depend on, and which cells train as one stack."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any, NamedTuple

from crfl_core import load_config
from crfl_core.config import RunConfig
from crfl_experiments.sweeps.configs import item, written

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
    tree = written(config)
    certificates = [one for one in config.certificates if any(name.startswith("crfl_") for name in dir(type(one)))]
    hooked = [one.model_dump(mode="json") for one in certificates]  # a certificate may judge rounds as any plugin may
    for key in (*LATER_KEYS, *(() if server else SERVER_KEYS)):
        *above, last = key.split(".")
        here: Any = tree
        for part in above:
            here = item(here, part) or {}
        here.pop(last, None)
    return sha256(json.dumps([tree, hooked], sort_keys=True).encode()).hexdigest()


class StackPlace(NamedTuple):
    """A config, and the stack in which it has a place; None if it trains by itself."""

    config: RunConfig
    stack: str | None


def place_in_stacks(configs: Sequence[RunConfig]) -> list[StackPlace]:
    """Give configs that differ in the server's part alone places in a stack of models.

    Configs with the same training have one place, because their bits must be the same.
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
    """Split models into as few stacks as possible of nearly equal size, as (first, number); one model is no stack.

    >>> split_evenly(10)
    [(0, 5), (5, 5)]
    >>> split_evenly(9), split_evenly(1)
    ([(0, 5), (5, 4)], [])
    """
    stacks = -(-count // MOST_MODELS)
    ends = [-(-count * number // stacks) for number in range(stacks + 1)] if count > 1 else []
    return [(first, last - first) for first, last in pairwise(ends)]


def with_stack_engine(config: RunConfig, models: int, place: int) -> RunConfig:
    """Copy a config with the engine that trains it at a place in a stack."""
    tree = written(config)
    chunk = tree["engine"].get("chunk_clients")
    tree["engine"] = {"type": "stacked", "models": models, "place": place}
    if chunk is not None:
        tree["engine"]["chunk_clients"] = chunk
    return load_config(tree).config
