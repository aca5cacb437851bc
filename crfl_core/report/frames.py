"""Finished runs as data frames. Pandas is imported when one is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from crfl_core.report import files
from crfl_core.report.metrics import Curve
from crfl_interface.errors import ConfigError, closest

if TYPE_CHECKING:
    from pandas import DataFrame

    from crfl_core.api import RunResult

ALIKE = ("certificate", "level", "test_set", "statement", "clean_world", "label", "samples", "accuracy", "abstained")
"""What all points of a curve share."""
SHARES = ("certified_accuracy", "certified_rate", "anywhen_accuracy", "anywhen_rate")
KINDS = ("curves", "samples", "rounds", "clients")


def frame(run: RunResult, rows: str) -> DataFrame:
    """What is asked of a run, as rows."""
    if rows not in KINDS:
        raise ConfigError(f"there are no rows {rows!r}: {closest(rows, KINDS) or 'there are ' + ', '.join(KINDS)}")
    try:
        import pandas
    except ImportError as error:
        raise ConfigError('data frames need pandas: `pip install "crfl[pandas]"`') from error
    if rows == "curves":
        return pandas.DataFrame([point for curve in run.metrics.curves for point in points(curve)])
    if rows == "samples":
        guarantees = [row for certified in run.certified for row in files.rows(certified)]
        told = pandas.DataFrame(guarantees, columns=list(files.COLUMNS))
        numbers = ["prediction", "p_a", "p_b", "radius", "log_radius", "count"]
        told[numbers] = told[numbers].apply(pandas.to_numeric, errors="coerce")
        return told
    if rows == "rounds":
        return pandas.DataFrame([record.model_dump(exclude={"notes"}) | record.notes for record in run.ledger.rounds])
    return pandas.DataFrame(vars(run.ledger.clients))


def points(curve: Curve) -> Iterator[dict[str, Any]]:
    """One row for every radius of a curve; the shares for attacks in any round are missing if they were not asked."""
    shared = {name: getattr(curve, name) for name in ALIKE} | {"directions": "+".join(curve.directions)}
    for number, radius in enumerate(curve.radii):
        shares = {name: values[number] if (values := getattr(curve, name)) else None for name in SHARES}
        yield shared | {"conditional": bool(curve.conditional or curve.label), "radius": radius} | shares
