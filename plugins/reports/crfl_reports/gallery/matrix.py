"""Attacks against defences: success, accuracy and certified accuracy of each pair."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from crfl_core.errors import ConfigError
from crfl_core.reporting.config_diff import UNSET, differences, read_config
from crfl_reports.figures import Grid, Heat
from crfl_reports.gallery.run_groups import groups, value_text

if TYPE_CHECKING:
    from crfl_core.config import RunConfig
    from crfl_core.reporting.metrics import Metrics
    from crfl_core.runs.results import RunResult

NO_ATTACK = "none"
DEFENCE = ("groups", "aggregation", "server")
CLIENTS = (1, 2, 3)
"""Numbers of attackers against which certified accuracy is shown."""
MEASURES = (
    "attack success",
    "accuracy",
    *(f"certified, {number} client{'s' if number > 1 else ''}" for number in CLIENTS),
)
Cell = tuple[str, str]


def matrix(runs: Sequence[RunResult]) -> Grid:
    """Return the measures of every attack under every defence, averaged over seeds."""
    configs = [read_config(run.directory) for run in runs]
    attacks = labels([attack_of(run.config) for run in runs], configs, ("attack",))
    defences = labels(defence_names([defence_of(run.config) for run in runs]), configs, DEFENCE)
    cells: dict[Cell, list[RunResult]] = {}
    for attack, defence, run in zip(attacks, defences, runs, strict=True):
        cells.setdefault((attack, defence), []).append(run)
    if len(cells) < 2:
        raise ConfigError("figure 'matrix' needs runs with different attacks or defences")
    for pair, alike in cells.items():
        check_alike(*pair, alike)
    rows = list(dict.fromkeys(attacks))
    columns = list(dict.fromkeys(defences))
    return Grid(
        list(tables(cells, rows, columns)),
        rows,
        columns,
        y_label="attack",
        x_label="defence",
        title=count_text(cells.values()),
    )


def tables(cells: Mapping[Cell, Sequence[RunResult]], rows: Sequence[str], columns: Sequence[str]) -> Iterator[Heat]:
    """Yield one table for every measure that some run has."""
    measured = {pair: [dict(measures(run.metrics)) for run in alike] for pair, alike in cells.items()}
    for name in MEASURES:
        mean, low, high = (np.full((len(rows), len(columns)), np.nan) for _ in range(3))
        counts = np.zeros(mean.shape, np.int64)
        for (row, column), found in measured.items():
            if values := [100 * one[name] for one in found if name in one]:
                place = rows.index(row), columns.index(column)
                mean[place] = np.mean(values)
                low[place] = min(values)
                high[place] = max(values)
                counts[place] = len(values)
        if counts.any():
            yield Heat(mean, "percent", name, (0, 100), low=low, high=high, counts=counts)


def measures(metrics: Metrics) -> Iterator[tuple[str, float]]:
    """Yield the measures of a run, as shares."""
    if metrics.backdoor is not None:
        yield MEASURES[0], metrics.backdoor.success_rate
    yield MEASURES[1], metrics.accuracy
    for name, number in zip(MEASURES[2:], CLIENTS, strict=True):
        if (proved := metrics.proven_accuracy(number)) is not None:
            yield name, proved[0]


def labels(names: Sequence[str], configs: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[str]:
    """Add to equal names the settings in which they differ.

    >>> labels(["scaled", "scaled"], [{"attack": {"scale": 9}}, {"attack": {"scale": 2}}], ["attack"])
    ['scaled, scale = 9', 'scaled, scale = 2']
    """
    found = list(names)
    for name in dict.fromkeys(names):
        places = [place for place, one in enumerate(names) if one == name]
        parts = [{key: configs[place][key] for key in keys if key in configs[place]} for place in places]
        for place, own in zip(places, differences(parts), strict=True):
            told = (f"{key.rpartition('.')[2]} = {value_text(value)}" for key, value in own.items() if value != UNSET)
            found[place] = ", ".join([name, *told])
    return found


def check_alike(attack: str, defence: str, runs: Sequence[RunResult]) -> None:
    """Raise `ConfigError` if a cell holds different experiments.

    A mean over them would hide what differs.
    """
    if len(found := groups(runs)) > 1:
        differ = " / ".join(group.label for group in found)
        raise ConfigError(f"runs of {attack} against {defence} differ in more than seeds, {differ}: leave some out")


def attack_of(config: RunConfig) -> str:
    """Return the name of the attack."""
    return NO_ATTACK if config.attack is None else config.attack.configured_as


def defence_names(defences: Sequence[tuple[str, ...]]) -> list[str]:
    """Name defences by the parts that not all of them share.

    If nothing would be left of one defence, the names keep all parts.

    >>> defence_names([("rfa", "noise"), ("krum", "noise")]), defence_names([("rfa", "noise")])
    (['rfa', 'krum'], ['rfa + noise'])
    >>> defence_names([("rfa",), ("rfa", "noise")])
    ['rfa', 'rfa + noise']
    """
    shared = set.intersection(*map(set, defences))
    rest = [[part for part in parts if part not in shared] for parts in defences]
    return [" + ".join(parts) for parts in (rest if all(rest) else defences)]


def defence_of(config: RunConfig) -> tuple[str, ...]:
    """Return the parts of a defence.

    They are groups, the steps of the aggregation, and clip and noise.
    """
    parts = [step.configured_as for step in config.aggregation]
    if config.groups is not None:
        parts.insert(0, "groups")
    if config.server.noise_std != 0:
        parts.append("clip + noise")
    return tuple(parts)


def count_text(cells: Iterable[Sequence[RunResult]]) -> str:
    """Say how many runs a cell averages, if there are several."""
    sizes = sorted({len(alike) for alike in cells})
    return "" if sizes == [1] else f"means of {' to '.join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))} runs"
