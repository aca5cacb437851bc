"""Finished runs as data frames. Pandas is imported when one is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

from crfl_core.errors import ConfigError, closest
from crfl_core.reporting import csv_files
from crfl_core.reporting.metrics import Curve, group
from crfl_core.reporting.terminal_tables import footnotes, shown_shares

if TYPE_CHECKING:
    from pandas import DataFrame

    from crfl_core.plugin_api.certificate import CertificateResult
    from crfl_core.runs.results import Results, RunResult

ALIKE = ("certificate", "level", "test_set", "statement", "clean_world", "label", "samples", "accuracy", "abstained")
"""What all points of a curve share."""
SHARES = ("certified_accuracy", "certified_rate", "any_round_accuracy", "any_round_rate")
ANSWERS = ("curves", "samples")
KINDS = (*ANSWERS, "rounds", "clients")


def frame(run: RunResult, rows: str) -> DataFrame:
    """What is asked of a run, as rows."""
    made = maker(rows, KINDS)
    if rows == "curves":
        return made(point for curve in run.metrics.curves for point in points(curve))
    if rows == "samples":
        return samples(run.certified)
    if rows == "rounds":
        return made(record.model_dump(exclude={"notes"}) | record.notes for record in run.ledger.rounds)
    return made(vars(run.ledger.clients))


def answers_frame(results: Results, rows: str) -> DataFrame:
    """What is asked of a what-if question, as rows."""
    made = maker(rows, ANSWERS)
    if rows == "curves":
        return made(point for curve in results.curves for point in points(curve))
    return samples(results.certified)


def maker(rows: str, kinds: Sequence[str]) -> type[DataFrame]:
    """What makes data frames, if there are such rows and pandas."""
    if rows not in kinds:
        raise ConfigError(f"there are no rows {rows!r}: {closest(rows, kinds) or 'there are ' + ', '.join(kinds)}")
    try:
        import pandas
    except ImportError as error:
        raise ConfigError('data frames need pandas: `pip install "crfl[pandas]"`') from error
    made: type[DataFrame] = pandas.DataFrame
    return made


def samples(certified: Sequence[CertificateResult]) -> DataFrame:
    """A row for every guarantee of every sample."""
    from pandas import DataFrame, to_numeric

    told = DataFrame([row for one in certified for row in csv_files.rows(one)], columns=list(csv_files.COLUMNS))
    numbers = ["prediction", "p_a", "p_b", "radius", "log_radius", "count"]
    told[numbers] = told[numbers].apply(to_numeric, errors="coerce")
    return told


def points(curve: Curve) -> Iterator[dict[str, Any]]:
    """One row for every radius of a curve; the shares for attacks in any round are missing if they were not asked."""
    shared = {name: getattr(curve, name) for name in ALIKE} | {"directions": "+".join(curve.directions)}
    for number, radius in enumerate(curve.radii):
        shares = {name: values[number] if (values := getattr(curve, name)) else None for name in SHARES}
        yield shared | {"conditional": bool(curve.conditional or curve.label), "radius": radius} | shares


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
