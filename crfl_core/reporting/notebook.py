"""A finished run as notebooks show it: plain tables that inherit the page's own colours, light or dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from crfl_core.reporting.csv_files import footnotes, shown_shares
from crfl_core.reporting.metrics import Curve, group

if TYPE_CHECKING:
    from crfl_core.runs.results import RunResult

RADIUS = {"feature": "radius", "sample": "poison ratio", "client": "clients"}


def summary(run: RunResult) -> str:
    """What the model does, what is certified about it, and what was refused."""
    metrics = run.metrics
    facts = [("clients", str(len(metrics.partition.sizes))), ("clean accuracy", f"{metrics.accuracy:.3f}")]
    if metrics.backdoor is not None:
        facts.append((f"attack success rate (class {metrics.backdoor.target})", f"{metrics.backdoor.success_rate:.3f}"))
    parts = [f"<b>{escape(run.path.name)}</b>", table([], facts), answers(metrics.curves, metrics.refused)]
    return "\n".join(["<div>", *parts, f"<p><code>{escape(str(run.path))}</code></p>", "</div>"])


def answers(curves: Iterable[Curve], refused: Mapping[str, str]) -> str:
    """What is certified, a table for each certificate and level, and what was refused."""
    parts = [certified([*together]) for _, together in groupby(curves, key=group)]
    parts += [f"<p>certificate {escape(name)} refused: {escape(why)}</p>" for name, why in refused.items()]
    return "\n".join(["<div>", *parts, "</div>"])


def certified(curves: Sequence[Curve]) -> str:
    """The table of one certificate and level, with what its numbers hang on."""
    first = curves[0]
    label = f" ({first.label})" if first.label else ""
    heads = [RADIUS[first.level], *(f"{name}, {one.test_set}" for one in curves for name, _ in shown_shares(one))]
    columns = [values for one in curves for _, values in shown_shares(one)]
    rows = [(f"{radius:g}", *(f"{values[row]:.3f}" for values in columns)) for row, radius in enumerate(first.radii)]
    notes = "<br>".join(escape(note.strip()) for note in footnotes(curves))
    title = escape(f"{first.certificate}{label}: {first.level} level")
    return f"<details open><summary>{title}</summary>{table(heads, rows)}<small>{notes}</small></details>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table; the first cell of a row is its name."""
    lines = [line("", heads)] if heads else []
    lines += [line(f"<th>{escape(first)}</th>", cells) for first, *cells in rows]
    return f"<table>{''.join(lines)}</table>"


def line(start: str, cells: Sequence[str]) -> str:
    """A row of a table: behind the name of a row its cells, without one the heads of columns."""
    tag = "td" if start else "th"
    return f"<tr>{start}{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
