"""Which cells of a sweep train their clients together: those that differ in nothing but what the server does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from crfl_core import load_config
from crfl_core.extend import RunConfig
from crfl_experiments.sweeps.configs import written
from crfl_experiments.sweeps.training_key import looks_ahead, training_key

MOST_MODELS = 8
"""Of a stack. Wider products gain little, and every run of a stack holds the features of the data."""


class Placed(NamedTuple):
    """A config, and the stack in which it has a place; None if it trains by itself."""

    config: RunConfig
    stack: str | None


def stacked(configs: Sequence[RunConfig]) -> list[Placed]:
    """The same configs with a place in a stack, where there is somebody to share it with.

    Cells that continue each other's training, or ask it something else, have one place: their bits must be the same.
    """
    families: dict[str, dict[str, list[int]]] = {}
    for number, config in enumerate(configs):
        if config.engine.configured_as != "local":
            continue
        rounds = looks_ahead(config)
        family, line = training_key(config, rounds=rounds, server=False), training_key(config, rounds=rounds)
        families.setdefault(family, {}).setdefault(line, []).append(number)
    found = [Placed(config, None) for config in configs]
    for family, lines in families.items():
        for first, models in cut(len(lines)):
            for place, numbers in enumerate(list(lines.values())[first : first + models]):
                for number in numbers:
                    found[number] = Placed(seated(configs[number], models, place), f"{family[:16]}-{first}")
    return found


def cut(count: int) -> list[tuple[int, int]]:
    """Stacks of nearly equal size, as few as can be, as first and number of models; one model alone is no stack.

    >>> cut(10)
    [(0, 5), (5, 5)]
    >>> cut(9), cut(1)
    ([(0, 5), (5, 4)], [])
    """
    stacks = -(-count // MOST_MODELS)
    ends = [-(-count * number // stacks) for number in range(stacks + 1)] if count > 1 else []
    return [(first, last - first) for first, last in pairwise(ends)]


def seated(config: RunConfig, models: int, place: int) -> RunConfig:
    """A config that trains at a place in a stack."""
    tree = written(config)
    chunk = tree["engine"].get("chunk_clients")
    tree["engine"] = {"type": "together", "models": models, "place": place}
    if chunk is not None:
        tree["engine"]["chunk_clients"] = chunk
    return load_config(tree).config
