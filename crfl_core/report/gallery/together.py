"""Runs that belong together: those that differ in nothing but their seeds, and what tells the others apart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from crfl_figures import Line
from crfl_interface.errors import ConfigError

if TYPE_CHECKING:
    from crfl_core.api import RunResult
    from crfl_core.config import RunConfig

NOT_THE_EXPERIMENT = {"name", "seed", "seeds", "storage", "trackers", "engine", "device", "plugins"}
"""Keys in which runs of one experiment may differ."""
KEYS = 3
"""Runs that differ in more keys than these are told apart by their directories."""


class Group(NamedTuple):
    """Runs of one experiment with different seeds; `label` is what tells them from the others, "" if there are none."""

    label: str
    runs: tuple[RunResult, ...]

    def named(self, name: str) -> str:
        """What a line of this group is called."""
        return f"{name}, {self.label}" if self.label and name else name or self.label


def groups(runs: Sequence[RunResult]) -> list[Group]:
    """The runs by experiment, in the order in which they came."""
    found: dict[str, list[RunResult]] = {}
    for run in runs:
        found.setdefault(json.dumps(experiment(run.config), sort_keys=True), []).append(run)
    flat = [dict(leaves(json.loads(key))) for key in found]
    known = dict.fromkeys(key for one in flat for key in one)
    keys = distinguishing([key for key in known if len({str(one.get(key)) for one in flat}) > 1])
    together = [tuple(alike) for alike in found.values()]
    if len(together) == 1:
        return [Group("", together[0])]
    labels = [", ".join(filter(None, (said(key, one.get(key)) for key in keys))) for one in flat]
    if len(keys) > KEYS or len(set(labels)) < len(labels):
        labels = [alike[0].path.name for alike in together]
    return [Group(label, alike) for label, alike in zip(labels, together, strict=True)]


def experiment(config: RunConfig) -> dict[str, Any]:
    """The config as plain data, without what does not make another experiment."""
    return config.model_dump(mode="json", exclude_none=True, exclude=NOT_THE_EXPERIMENT)


def leaves(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every value of nested tables and lists, with its key.

    >>> dict(leaves({"server": {"clip_norm": 2.0}, "aggregation": [{"type": "rfa"}]}))
    {'server.clip_norm': 2.0, 'aggregation.0.type': 'rfa'}
    """
    if isinstance(tree, Mapping):
        parts = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, list) and any(isinstance(value, Mapping) for value in tree):
        parts = [(str(number), value) for number, value in enumerate(tree)]
    else:
        yield path, tree
        return
    for key, value in parts:
        yield from leaves(value, f"{path}.{key}" if path else key)


def distinguishing(keys: Sequence[str]) -> list[str]:
    """The keys that say enough: of a plugin that is another one its type, and none of its options.

    >>> distinguishing(["attack.type", "attack.scale", "attack.trigger.type", "seed"])
    ['attack.type', 'seed']
    """
    others = [key for key in keys if key.endswith(".type")]
    return [key for key in keys if not any(key.startswith(one.removesuffix("type")) and key != one for one in others)]


def said(key: str, value: object) -> str:
    """A setting in a legend; the type of a plugin says enough, and one step less in a list says nothing."""
    table = key.removesuffix(".type")
    if value is None:
        return "" if table.rpartition(".")[2].isdigit() else f"no {table}"
    return f"{key} = {value}" if table == key else str(value)


def banded(name: str, x: ArrayLike, values: Sequence[ArrayLike]) -> Line:
    """The mean of some runs, in a band from the smallest to the largest of them if there are several."""
    stacked = np.array(values, dtype=np.float64)
    if len(stacked) == 1:
        return Line(name, x, stacked[0])
    return Line(name, x, stacked.mean(axis=0), stacked.min(axis=0), stacked.max(axis=0))


def bands(found: Sequence[Group]) -> str:
    """What a figure with bands says about them."""
    sizes = {len(group.runs) for group in found}
    count = max(sizes) if len(sizes) == 1 else f"up to {max(sizes)}"
    return "" if sizes == {1} else f"mean of {count} seeds, bands from the smallest to the largest"


def only(runs: Sequence[RunResult], figure: str) -> RunResult:
    """The run of a figure that shows one."""
    if len(runs) > 1:
        raise ConfigError(f"figure {figure!r} shows one run, found {len(runs)}: draw them one by one")
    return runs[0]
