"""All numbers of a sweep in long form: one row for each cell, measure and radius, as CSV and as Parquet.

cell, the varied keys, measure, certificate, level, test_set, radius, value
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from crfl_core.errors import CrflError
from crfl_core.reporting.metrics import Metrics
from crfl_core.runs.run_directory import RunDirectory
from crfl_experiments.sweeps.cells import Cell
from crfl_experiments.sweeps.folder import SweepFolder
from crfl_experiments.sweeps.values import shown

ABOUT = ("measure", "certificate", "level", "test_set", "radius", "value")
Row = dict[str, Any]


def measures(metrics: Metrics) -> Iterator[Row]:
    """Every number of a run, with what it is about."""

    def plain(measure: str, value: float | None, test_set: str = "clean") -> Iterator[Row]:
        if value is not None:
            yield {**dict.fromkeys(ABOUT), "measure": measure, "test_set": test_set, "value": value}

    yield from plain("accuracy", metrics.accuracy)
    yield from plain("loss", metrics.loss)
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


def rows(folder: SweepFolder, cells: Iterable[Cell]) -> tuple[list[Row], dict[str, str]]:
    """The rows of all finished cells, and why some that should be cannot be read."""
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
        settings = {key: shown(value) for key, value in cell.columns.items()}
        found += [{"cell": cell.name, **settings, **row} for row in measures(metrics)]
    return found, damaged


def columns_of(cells: Sequence[Cell]) -> list[str]:
    """The columns of the table of a sweep."""
    varied = dict.fromkeys(key for cell in cells for key in cell.columns)
    return ["cell", *varied, *ABOUT]


def csv_text(names: Sequence[str], table: Iterable[Mapping[str, Any]]) -> bytes:
    """The table as CSV; numbers read back to the same bits."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([cell_text(row.get(name)) for name in names] for row in table)
    return buffer.getvalue().encode()


def cell_text(value: Any) -> str:
    """A value as CSV shows it."""
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def parquet_bytes(names: Sequence[str], table: Sequence[Mapping[str, Any]]) -> bytes | None:
    """The table as Parquet; None if the package for that is not installed."""
    if find_spec("pyarrow") is None:
        return None
    import pyarrow
    import pyarrow.parquet

    columns = {name: uniform([row.get(name) for row in table]) for name in names}
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


def uniform(values: list[Any]) -> list[Any]:
    """A column of one type: numbers if all are, else texts."""
    given = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in given) or all(isinstance(value, str) for value in given):
        return values
    if any(isinstance(value, bool | str) for value in given):
        return [None if value is None else str(value) for value in values]
    if all(isinstance(value, int) for value in given):
        return values
    return [None if value is None else float(value) for value in values]


def write_tables(folder: SweepFolder, cells: Sequence[Cell]) -> dict[str, str]:
    """Write sweep.csv and sweep.parquet as a whole; why cells are not in them that should be."""
    names, (table, damaged) = columns_of(cells), rows(folder, cells)
    folder.write("sweep.csv", csv_text(names, table))
    if (content := parquet_bytes(names, table)) is not None:
        folder.write("sweep.parquet", content)
    return damaged
