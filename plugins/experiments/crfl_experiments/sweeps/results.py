"""Results of a sweep, read from its folder, and its table in long form as CSV and as Parquet.

The columns are cell, the varied keys, measure, certificate, level, test_set, radius, value.
"""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crfl_core.errors import CrflError
from crfl_core.reporting.metrics import Metrics
from crfl_core.runs.results import RunResult, load
from crfl_core.runs.run_directory import RunDirectory
from crfl_experiments.sweeps.folder import Note, SweepFolder
from crfl_experiments.sweeps.values import table_value

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from crfl_experiments.sweeps.cells import Cell


@dataclass(frozen=True)
class CellResult:
    """One cell: its settings, how it ended, and its run."""

    cell: Cell
    path: Path
    note: Note

    @property
    def settings(self) -> dict[str, Any]:
        """Return the varied settings, and those linked to them."""
        return self.cell.columns

    @cached_property
    def run(self) -> RunResult:
        """Return the finished run. Raises `StoreError` if it is not finished."""
        return load(self.path)


class SweepResult:
    """Results of a sweep, finished or not. `cells` has all of them in the order of the table."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._folder = SweepFolder.open(self.path)
        self._cells = self._folder.definition.cells()
        self.cells = tuple(
            CellResult(cell, self._folder.cell(cell.name), self._note(cell.name)) for cell in self._cells
        )

    @property
    def failed(self) -> tuple[CellResult, ...]:
        """Return the cells that failed; `note.reason` says why."""
        return tuple(one for one in self.cells if one.note.state == "failed")

    @property
    def is_finished(self) -> bool:
        """Return whether all cells are finished."""
        return all(one.note.state == "finished" for one in self.cells)

    @cached_property
    def rows(self) -> list[Row]:
        """Return all numbers in long form, as in sweep.csv."""
        return collect_rows(self._folder, self._cells)[0]

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns of the long form."""
        return column_names(self._cells)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the long form as a data frame; pandas must be installed."""
        import pandas

        return pandas.DataFrame(self.rows, columns=self.columns)

    def plot(self, against: str | None = None, measure: str | None = None) -> Figure:
        """Draw certified accuracy against the radius.

        With `against`, draw a measure along that key, which was varied.
        """
        from crfl_experiments.comparison import runs_of_sweep
        from crfl_experiments.comparison_figure import comparison_figure

        return comparison_figure(runs_of_sweep(self), against, measure)

    def _repr_html_(self) -> str:
        keys = list(dict.fromkeys(key for one in self.cells for key in one.settings))
        figures: dict[str, dict[str, float]] = {one.cell.name: {} for one in self.cells}
        for row in self.rows:
            if row["certificate"] is None:
                figures[row["cell"]].setdefault(f"{row['measure']} ({row['test_set']})", row["value"])
        measured = list(dict.fromkeys(name for each in figures.values() for name in each))
        head = "".join(f"<th>{html.escape(name)}</th>" for name in (*keys, "state", *measured))
        lines = []
        for one in self.cells:
            settings = [str(table_value(one.settings.get(key, ""))) for key in keys]
            values = [
                f"{figures[one.cell.name][name]:.4g}" if name in figures[one.cell.name] else "" for name in measured
            ]
            cells = "".join(f"<td>{html.escape(text)}</td>" for text in (*settings, one.note.state, *values))
            lines.append(f"<tr>{cells}</tr>")
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"

    def _note(self, name: str) -> Note:
        if self._folder.is_finished(name):
            note = self._folder.note(name)
            return note if note.state == "finished" else Note("finished")
        return self._folder.note(name)


FIXED_COLUMNS = ("measure", "certificate", "level", "test_set", "radius", "value")
Row = dict[str, Any]


def measure_rows(metrics: Metrics) -> Iterator[Row]:
    """Yield every number of a run as a row.

    A row has measure, certificate, level, test set, radius and value.
    """

    def plain(measure: str, value: float | None, test_set: str = "clean") -> Iterator[Row]:
        if value is not None:
            yield {**dict.fromkeys(FIXED_COLUMNS), "measure": measure, "test_set": test_set, "value": value}

    yield from plain("accuracy", metrics.accuracy)
    yield from plain("loss", metrics.loss)
    if metrics.trusted_baseline is not None:
        yield from plain("accuracy_of_server_alone", metrics.trusted_baseline.accuracy)
    yield from plain("accuracy", metrics.backdoored_accuracy, "backdoored")
    if metrics.backdoor is not None:
        yield from plain("backdoor_success", metrics.backdoor.success_rate, "backdoored")
        yield from plain("backdoor_success", metrics.backdoor.clean_rate)
    if metrics.attackers is not None:
        yield from plain("attackers_share", metrics.attackers.mean_weight_share)
    for curve in metrics.curves:
        about = {"certificate": curve.certificate, "level": curve.level, "test_set": curve.test_set}
        for measure, single in (("abstained", curve.abstained), ("median_radius", curve.median_radius)):
            if single is not None:
                yield {"measure": measure, **about, "radius": None, "value": single}
        columns = {
            "certified_accuracy": curve.certified_accuracy,
            "certified_rate": curve.certified_rate,
            "certified_accuracy_any_round": curve.any_round_accuracy,
            "certified_rate_any_round": curve.any_round_rate,
        }
        for measure, values in columns.items():
            for radius, value in zip(curve.radii, values, strict=False):  # empty if attacks in any round were not asked
                yield {"measure": measure, **about, "radius": radius, "value": value}


def collect_rows(folder: SweepFolder, cells: Iterable[Cell]) -> tuple[list[Row], dict[str, str]]:
    """Return the rows of all finished cells.

    The second value says why some finished cells cannot be read.
    """
    found: list[Row] = []
    damaged: dict[str, str] = {}
    for cell in cells:
        if not folder.is_finished(cell.name):
            continue
        try:
            metrics = RunDirectory(folder.cell(cell.name)).read_facts("metrics.json", Metrics)
        except CrflError as error:
            damaged[cell.name] = f"{error}; or remove {folder.cell(cell.name)} and resume the sweep"
            continue
        settings = {key: table_value(value) for key, value in cell.columns.items()}
        found += [{"cell": cell.name, **settings, **row} for row in measure_rows(metrics)]
    return found, damaged


def column_names(cells: Sequence[Cell]) -> list[str]:
    """Return the columns of the table of a sweep."""
    varied = dict.fromkeys(key for cell in cells for key in cell.columns)
    return ["cell", *varied, *FIXED_COLUMNS]


def csv_text(names: Sequence[str], table: Iterable[Mapping[str, Any]]) -> bytes:
    """Write the table as CSV; numbers read back to the same bits."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([csv_value(row.get(name)) for name in names] for row in table)
    return buffer.getvalue().encode()


def csv_value(value: Any) -> str:
    """Write a value for CSV."""
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def parquet_bytes(names: Sequence[str], table: Sequence[Mapping[str, Any]]) -> bytes | None:
    """Write the table as Parquet; None if pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        return None
    import pyarrow
    import pyarrow.parquet

    columns = {name: to_one_type([row.get(name) for row in table]) for name in names}
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


def to_one_type(values: list[Any]) -> list[Any]:
    """Convert a column to one type.

    If all values are numbers the type is a number, else text.
    """
    given = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in given) or all(isinstance(value, str) for value in given):
        return values
    if any(isinstance(value, bool | str) for value in given):
        return [None if value is None else str(value) for value in values]
    if all(isinstance(value, int) for value in given):
        return values
    return [None if value is None else float(value) for value in values]


def write_tables(folder: SweepFolder, cells: Sequence[Cell]) -> dict[str, str]:
    """Write sweep.csv and sweep.parquet; return why finished cells are missing in them."""
    names, (table, damaged) = column_names(cells), collect_rows(folder, cells)
    folder.write("sweep.csv", csv_text(names, table))
    if (content := parquet_bytes(names, table)) is not None:
        folder.write("sweep.parquet", content)
    return damaged
