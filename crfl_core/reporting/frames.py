"""Finished runs as data frames. Pandas is imported when one is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from crfl_core.errors import ConfigError, closest
from crfl_core.reporting import files
from crfl_core.reporting.metrics import Curve

if TYPE_CHECKING:
    from pandas import DataFrame

    from crfl_core.plugin_api.certificate import CertificateResult
    from crfl_core.reporting.results import Results
    from crfl_core.runs.results import RunResult

ALIKE = ("certificate", "level", "test_set", "statement", "clean_world", "label", "samples", "accuracy", "abstained")
"""What all points of a curve share."""
SHARES = ("certified_accuracy", "certified_rate", "anywhen_accuracy", "anywhen_rate")
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


def answers(results: Results, rows: str) -> DataFrame:
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

    told = DataFrame([row for one in certified for row in files.rows(one)], columns=list(files.COLUMNS))
    numbers = ["prediction", "p_a", "p_b", "radius", "log_radius", "count"]
    told[numbers] = told[numbers].apply(to_numeric, errors="coerce")
    return told


def points(curve: Curve) -> Iterator[dict[str, Any]]:
    """One row for every radius of a curve; the shares for attacks in any round are missing if they were not asked."""
    shared = {name: getattr(curve, name) for name in ALIKE} | {"directions": "+".join(curve.directions)}
    for number, radius in enumerate(curve.radii):
        shares = {name: values[number] if (values := getattr(curve, name)) else None for name in SHARES}
        yield shared | {"conditional": bool(curve.conditional or curve.label), "radius": radius} | shares
