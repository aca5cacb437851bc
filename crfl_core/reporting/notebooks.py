"""Finished runs in notebooks: data frames, and HTML tables that inherit the colours of the page.

Pandas is imported when a data frame is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

from crfl_core.certification.levels import LEVEL_WORDS
from crfl_core.errors import ConfigError, suggest_names
from crfl_core.reporting import csv_files
from crfl_core.reporting.metrics import CollectiveCurve, Curve, table_key
from crfl_core.reporting.terminal import collective_sentences
from crfl_core.reporting.terminal_tables import footnotes, share_columns
from crfl_core.reporting.verdict import attack_text

if TYPE_CHECKING:
    from pandas import DataFrame

    from crfl_core.plugin_api.certificate import CertificateResult
    from crfl_core.runs.results import Results, RunResult

CURVE_COLUMNS = (
    "certificate",
    "level",
    "test_set",
    "statement",
    "clean_world",
    "label",
    "samples",
    "accuracy",
    "abstained",
)
"""Columns that all points of a curve share."""
SHARE_COLUMNS = ("certified_accuracy", "certified_rate", "any_round_accuracy", "any_round_rate")
RESULT_ROWS = ("curves", "samples")
RUN_ROWS = (*RESULT_ROWS, "rounds", "clients")


def run_frame(run: RunResult, rows: str) -> DataFrame:
    """Return a data frame with the chosen rows of a run."""
    made = import_data_frame(rows, RUN_ROWS)
    if rows == "curves":
        return made(point for curve in run.metrics.curves for point in curve_points(curve))
    if rows == "samples":
        return samples_frame(run.certified)
    if rows == "rounds":
        return made(record.model_dump(exclude={"notes"}) | record.notes for record in run.ledger.rounds)
    return made(vars(run.ledger.clients))


def answers_frame(results: Results, rows: str) -> DataFrame:
    """Return a data frame with the chosen rows of a what-if answer."""
    made = import_data_frame(rows, RESULT_ROWS)
    if rows == "curves":
        return made(point for curve in results.curves for point in curve_points(curve))
    return samples_frame(results.certified)


def import_data_frame(rows: str, kinds: Sequence[str]) -> type[DataFrame]:
    """Import the class of data frames.

    Raises `ConfigError` without such rows or without pandas.
    """
    if rows not in kinds:
        raise ConfigError(
            f"there are no rows {rows!r}: {suggest_names(rows, kinds) or 'there are ' + ', '.join(kinds)}"
        )
    try:
        import pandas
    except ImportError as error:
        raise ConfigError('data frames need pandas: `pip install "crfl[pandas]"`') from error
    made: type[DataFrame] = pandas.DataFrame
    return made


def samples_frame(certified: Sequence[CertificateResult]) -> DataFrame:
    """Return a data frame of all guarantees.

    It has a row for every guarantee of every sample.
    """
    from pandas import DataFrame, to_numeric

    table = DataFrame(
        [row for one in certified for row in csv_files.guarantee_rows(one)], columns=list(csv_files.COLUMNS)
    )
    numbers = ["prediction", "p_a", "p_b", "radius", "log_radius", "count"]
    table[numbers] = table[numbers].apply(to_numeric, errors="coerce")
    return table


def curve_points(curve: Curve) -> Iterator[dict[str, Any]]:
    """Yield one row for every radius of a curve.

    Shares for any round are None if not computed.
    """
    shared = {name: getattr(curve, name) for name in CURVE_COLUMNS} | {"directions": "+".join(curve.directions)}
    for number, radius in enumerate(curve.radii):
        shares = {name: values[number] if (values := getattr(curve, name)) else None for name in SHARE_COLUMNS}
        yield shared | {"conditional": bool(curve.conditional or curve.label), "radius": radius} | shares


def run_html(run: RunResult) -> str:
    """Return a finished run as HTML: accuracy, guarantees, and refused certificates."""
    metrics = run.metrics
    facts = [("clients", str(len(metrics.partition.sizes))), ("clean accuracy", f"{metrics.accuracy:.3f}")]
    if metrics.voting is not None:
        facts.append(("vote of the groups", metrics.voting))
    if metrics.trusted_baseline is not None:
        facts.append(("accuracy of the server alone", f"{metrics.trusted_baseline.accuracy:.3f}"))
    if metrics.backdoor is not None:
        facts.append((f"attack success rate (class {metrics.backdoor.target})", f"{metrics.backdoor.success_rate:.3f}"))
    facts.append(("attack", attack_text(metrics.attackers, metrics.partition.clients)))
    head = [f"<b>{escape(run.path.name)}</b>", f"<p>{escape(run.verdict)}</p>"]
    parts = [*head, html_table([], facts), results_html(metrics.curves, metrics.refused, metrics.collective)]
    return "\n".join(["<div>", *parts, f"<p><code>{escape(str(run.path))}</code></p>", "</div>"])


def results_html(
    curves: Iterable[Curve], refused: Mapping[str, str], collective: Iterable[CollectiveCurve] = ()
) -> str:
    """Return the guarantees as HTML.

    It has a table for each certificate and level, and the refused certificates.
    """
    parts = [curves_html([*together]) for _, together in groupby(curves, key=table_key)]
    parts += [f"<p>{escape(line)}</p>" for line in collective_sentences([*collective])]
    parts += [f"<p>certificate {escape(name)} refused: {escape(why)}</p>" for name, why in refused.items()]
    return "\n".join(["<div>", *parts, "</div>"])


def curves_html(curves: Sequence[Curve]) -> str:
    """Return the table of one certificate and level, with its footnotes."""
    first = curves[0]
    label = f" ({first.label})" if first.label else ""
    heads = [
        LEVEL_WORDS[first.level].unit,
        *(f"{name}, {one.test_set}" for one in curves for name, _ in share_columns(one)),
    ]
    columns = [values for one in curves for _, values in share_columns(one)]
    rows = [(f"{radius:g}", *(f"{values[row]:.3f}" for values in columns)) for row, radius in enumerate(first.radii)]
    notes = "<br>".join(escape(note.strip()) for note in footnotes(curves))
    title = escape(f"{first.certificate}{label}: {first.level} level")
    return f"<details open><summary>{title}</summary>{html_table(heads, rows)}<small>{notes}</small></details>"


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table.

    The first cell of a row is its name.
    """
    lines = [html_row("", heads)] if heads else []
    lines += [html_row(f"<th>{escape(first)}</th>", cells) for first, *cells in rows]
    return f"<table>{''.join(lines)}</table>"


def html_row(start: str, cells: Sequence[str]) -> str:
    """Return a row of a table.

    It has the cells after its name. Without a name, it has the headings of columns.
    """
    tag = "td" if start else "th"
    return f"<tr>{start}{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
