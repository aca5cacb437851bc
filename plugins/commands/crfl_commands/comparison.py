"""Comparisons and lists of runs as tables for people, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from crfl_sweeps.comparing import Comparison, Difference, Statistic
from crfl_sweeps.listing import Listed
from crfl_sweeps.overview import duration

if TYPE_CHECKING:
    from rich.console import RenderableType


def comparison_table(comparison: Comparison, *, full: bool = False, most: int | None = None) -> RenderableType:
    """A table for every measure with a row for every point: mean, spread, number of runs, difference to the first.

    Of certificates that are known at several radii only the first is shown, if not all is wanted; `most` is how many
    tables there are at most.
    """
    shown = comparison.measures if full else comparison.few
    return Group(*(measure_table(comparison, measure) for measure in shown[:most]))


def measure_table(comparison: Comparison, measure: str) -> RenderableType:
    """One measure of all points."""
    table = Table(box=box.SIMPLE, title=measure, title_justify="left")
    several = len(comparison.points) > 1
    for name in short_names(comparison.keys) or ["runs"]:
        table.add_column(name, overflow="fold")
    for name in ("mean", "spread", "n", *(["difference", "95 % interval"] if several else [])):
        table.add_column(name, justify="right")
    for point in comparison.points:
        if measure in point.statistics:
            settings = [escape(str(point.settings.get(key, ""))) for key in comparison.keys] or ["all"]
            apart = difference(point.differences.get(measure)) if several else []
            table.add_row(*settings, *numbers(point.statistics[measure]), *apart)
    return table


def short_names(keys: Sequence[str]) -> list[str]:
    """The last word of every key if that tells them apart; of the type of a plugin, what it is a plugin for.

    >>> short_names(["attack.scale", "aggregation.0.type"]), short_names(["attack.clients", "threat.clients"])
    (['scale', 'aggregation'], ['attack.clients', 'threat.clients'])
    """
    words = [[part for part in key.removesuffix(".type").split(".") if not part.isdigit()][-1] for key in keys]
    return [word if words.count(word) == 1 else key for key, word in zip(keys, words, strict=True)]


def numbers(statistic: Statistic) -> list[str]:
    """Mean, spread and number of runs."""
    spread = "" if statistic.spread is None else f"{statistic.spread:.4f}"
    return [f"{statistic.mean:.4f}", spread, str(statistic.n)]


def difference(found: Difference | None) -> list[str]:
    """The difference and its interval."""
    if found is None:
        return ["", ""]
    interval = "" if found.low is None or found.high is None else f"{found.low:+.4f} to {found.high:+.4f}"
    return [f"{found.mean:+.4f}", interval]


def comparison_json(comparison: Comparison) -> str:
    """The same for programs."""
    points: list[dict[str, Any]] = [
        {
            "settings": point.settings,
            "runs": [run.title for run in point.runs],
            "measures": {name: one._asdict() for name, one in point.statistics.items()},
            "differences": {name: one._asdict() for name, one in point.differences.items()},
        }
        for point in comparison.points
    ]
    return json.dumps({"points": points}, indent=2)


def list_table(listed: Sequence[Listed]) -> RenderableType:
    """One row per run; columns in which nothing stands are left out."""
    keys = list(dict.fromkeys(key for one in listed for key in one.settings))
    columns = {
        "state": [one.state for one in listed],
        "age": [short(one.age) for one in listed],
        "size": [size(one.size) for one in listed],
        "accuracy": [share(one.accuracy) for one in listed],
        "backdoor": [share(one.backdoor) for one in listed],
        "certified": [share(one.certified) for one in listed],
    }
    for key, name in zip(keys, short_names(keys), strict=True):
        columns[name] = [escape(str(one.settings.get(key, ""))) for one in listed]
    told = {name: values for name, values in columns.items() if any(values)}
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold", min_width=min(20, max(len(one.name) for one in listed)))
    for name, values in told.items():
        number = all(value.replace(".", "", 1).isdigit() for value in values if value)
        table.add_column(name, justify="right" if number or name in ("age", "size") else "left", overflow="fold")
    for one, row in zip(listed, zip(*told.values(), strict=True), strict=True):
        table.add_row(escape(one.name), *row)
    return table


def share(value: float | None) -> str:
    """A share, or nothing."""
    return "" if value is None else f"{value:.3f}"


def short(seconds: float) -> str:
    """An age in its largest unit."""
    days = int(seconds // 86_400)
    return f"{days} d" if days else " ".join(duration(seconds).split()[:2])


def size(count: int) -> str:
    """A number of bytes for people.

    >>> size(900), size(1_700_000)
    ('1 kB', '1.7 MB')
    """
    return f"{max(1, round(count / 1e3))} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"
