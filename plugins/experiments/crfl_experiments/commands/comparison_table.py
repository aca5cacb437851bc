"""Comparison of runs as terminal tables, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from crfl_experiments.comparison import MOST_KEYS_IN_TITLE, Comparison, Difference, Statistic, runs_title

if TYPE_CHECKING:
    from rich.console import RenderableType


def comparison_table(comparison: Comparison, *, full: bool = False, most: int | None = None) -> RenderableType:
    """Build a table for every measure with a row for every point.

    Of certificates that are known at several radii only the first is shown, if not all is wanted; `most` is how many
    tables there are at most.
    """
    shown = comparison.measures if full else comparison.short_measures
    parts = [measure_table(comparison, measure) for measure in shown[:most]]
    if len(comparison.keys) > MOST_KEYS_IN_TITLE:
        parts.append(Text(f"they differ in {len(comparison.keys)} settings: see --json"))
    parts += [Text(f"{certificate}: {label}") for certificate, label in comparison.labels.items()]
    parts += map(Text, (*comparison.bounds, *comparison.attacks))
    return Group(*parts)


def measure_table(comparison: Comparison, measure: str) -> RenderableType:
    """Build the table of one measure."""
    table = Table(box=box.SIMPLE, title=Text(measure), title_justify="left")
    several = len(comparison.points) > 1
    by_settings = len(comparison.keys) <= MOST_KEYS_IN_TITLE
    for name in (short_names(comparison.keys) if by_settings else ()) or ["runs"]:
        table.add_column(name, overflow="fold")
    for name in ("mean", "spread", "n", *(["difference", "95 % interval"] if several else [])):
        table.add_column(name, justify="right")
    for point in comparison.points:
        if measure in point.statistics:
            settings = [str(point.settings.get(key, "")) for key in comparison.keys] or ["all"]
            titles = map(escape, settings if by_settings else [runs_title(point.runs)])
            apart = difference(point.differences.get(measure)) if several else []
            table.add_row(*titles, *numbers(point.statistics[measure]), *apart)
    return table


def short_names(keys: Sequence[str]) -> list[str]:
    """Return the last word of every key where it is unique.

    Other keys stay whole. The type of a plugin gets the kind of the plugin as its word.
    """
    words = [[part for part in key.removesuffix(".type").split(".") if not part.isdigit()][-1] for key in keys]
    return [word if words.count(word) == 1 else key for key, word in zip(keys, words, strict=True)]


def numbers(statistic: Statistic) -> list[str]:
    """Format mean, spread and number of runs."""
    spread = "" if statistic.spread is None else f"{statistic.spread:.4f}"
    return [f"{statistic.mean:.4f}", spread, str(statistic.n)]


def difference(found: Difference | None) -> list[str]:
    """Format the difference and its interval."""
    if found is None:
        return ["", ""]
    interval = "" if found.low is None or found.high is None else f"{found.low:+.4f} to {found.high:+.4f}"
    return [f"{found.mean:+.4f}", interval]


def comparison_json(comparison: Comparison) -> str:
    """Write the comparison as JSON."""
    points: list[dict[str, Any]] = [
        {
            "settings": point.settings,
            "runs": [run.title for run in point.runs],
            "measures": {name: one._asdict() for name, one in point.statistics.items()},
            "differences": {name: one._asdict() for name, one in point.differences.items()},
        }
        for point in comparison.points
    ]
    remarks = {"labels": comparison.labels, "attacks": comparison.attacks, "bounds": comparison.bounds}
    return json.dumps({"points": points} | remarks, indent=2)
