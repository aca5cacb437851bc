"""Groups of runs that differ only in their seeds, and labels that tell the groups apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from crfl_core.errors import ConfigError
from crfl_core.reporting.config_diff import UNSET, Flat, differences, read_config, split_seeds
from crfl_reports.figures import Line

if TYPE_CHECKING:
    from crfl_core.runs.results import RunResult

KEYS = 3
"""Runs that differ in more keys than these are told apart by their directories."""


class Group(NamedTuple):
    """Runs of one experiment with different seeds; `label` tells it from others, "" if there are none."""

    label: str
    runs: tuple[RunResult, ...]

    def named(self, name: str) -> str:
        """Return the name of a line of this group."""
        return f"{name}, {self.label}" if self.label and name else name or self.label


def groups(runs: Sequence[RunResult]) -> list[Group]:
    """Group the runs by experiment, in the order in which they came."""
    points = [split_seeds(own)[0] for own in differences([read_config(run.directory) for run in runs])]
    found: dict[str, list[int]] = {}
    for number, point in enumerate(points):
        found.setdefault(repr(point), []).append(number)
    together = [tuple(runs[number] for number in alike) for alike in found.values()]
    if len(together) == 1:
        return [Group("", together[0])]
    labels = [label(points[alike[0]]) for alike in found.values()]
    if len(points[0]) > KEYS or len(set(labels)) < len(labels):
        labels = [alike[0].path.name for alike in together]
    return [Group(told, alike) for told, alike in zip(labels, together, strict=True)]


def label(point: Flat) -> str:
    """Write the settings that set an experiment apart for a legend.

    >>> label({"attack.type": "scaled", "attack.scale": 9}), label({"attack.type": UNSET, "attack.scale": UNSET})
    ('scaled, attack.scale = 9', 'no attack')
    """
    types = tuple(key.removesuffix("type") for key in point if key.endswith(".type"))
    return ", ".join(filter(None, (said(key, value, key.startswith(types)) for key, value in point.items())))


def said(key: str, value: object, of_plugin: bool) -> str:
    """Write a setting for a legend.

    The text names a plugin by its type alone and leaves out list indices. It is empty for an option that a plugin of
    another type does not have.
    """
    table = key.removesuffix(".type")
    if value != UNSET:
        return f"{key} = {value_text(value)}" if table == key else str(value)
    is_known = table.rpartition(".")[2].isdigit() or (of_plugin and table == key)
    return "" if is_known else f"no {table}"


def value_text(value: object) -> str:
    """Write a value for people.

    >>> value_text(10.0), value_text(0.5), value_text([1, 2])
    ('10', '0.5', '[1, 2]')
    """
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def band_line(name: str, x: ArrayLike, values: Sequence[ArrayLike]) -> Line:
    """Return the mean of some runs with a band.

    The band runs from the smallest to the largest value.
    """
    stacked = np.array(values, dtype=np.float64)
    if len(stacked) == 1:
        return Line(name, x, stacked[0])
    return Line(name, x, stacked.mean(axis=0), stacked.min(axis=0), stacked.max(axis=0))


def bands(found: Sequence[Group]) -> str:
    """Return the remark about the bands of a figure.

    The text is empty if there are no bands.
    """
    sizes = {len(group.runs) for group in found}
    count = max(sizes) if len(sizes) == 1 else f"up to {max(sizes)}"
    return "" if sizes == {1} else f"mean of {count} seeds, bands from the smallest to the largest"


def only(runs: Sequence[RunResult], figure: str) -> RunResult:
    """Return the run of a figure that shows one."""
    if len(runs) > 1:
        raise ConfigError(f"figure {figure!r} shows one run, found {len(runs)}: draw them one by one")
    return runs[0]
