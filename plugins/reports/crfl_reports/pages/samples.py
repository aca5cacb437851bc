"""What every certificate says about every test sample, read from the run's own tables: no plugin is needed for that."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from crfl_core.errors import CrflError
from crfl_core.plugin_api.certificate import ABSTAIN, CertificateResult, Guarantee
from crfl_core.runs.results import RunResult
from crfl_core.runs.run_directory import RunDirectory
from crfl_reports.pages.contents import number
from crfl_reports.pages.pictures import sheet

MOST_ROWS = 4_000
"""So many samples of a test set are listed; the tables of the run have all of them."""

DIGITS = 4
"""Significant digits of a radius, rounded down: a page must not claim more than was certified."""


@dataclass(frozen=True)
class Row:
    """One line of a certificate's table."""

    label: int
    prediction: int
    radius: float


Key = tuple[str, str, str]
"""Test set, certificate and level."""


def tables(directory: RunDirectory) -> Iterator[CertificateResult]:
    """The guarantees of a run as its tables have them, in their order."""
    for name in sorted(directory.own_files()):
        if name.startswith("certificates/"):
            yield from guarantees(directory, name)


def guarantees(directory: RunDirectory, name: str) -> Iterator[CertificateResult]:
    """The guarantees of one table, compared with the digest that the run has of it."""
    text = directory.read(name).decode()
    found: dict[Key, list[dict[str, str]]] = {}
    try:
        for line in csv.DictReader(io.StringIO(text)):
            found.setdefault((line["set"], line["certificate"], line["level"]), []).append(line)
        for lines in found.values():
            yield guarantee(lines)
    except (KeyError, ValueError, TypeError) as error:
        raise directory.damaged(name, error) from error


def guarantee(lines: list[dict[str, str]]) -> CertificateResult:
    """The lines of one certificate, level and test set."""
    first = lines[0]
    columns = {
        column: np.array([float(line[column] or "nan") for line in lines])
        for column in ("radius", "log_radius", "p_a", "p_b")
    }
    predictions = [int(line["prediction"]) if line["prediction"] else ABSTAIN for line in lines]
    return CertificateResult(
        certificate=first["certificate"],
        level=first["level"],  # type: ignore[arg-type]  # as the run wrote it
        test_set=first["set"],
        statement=first["statement"],  # type: ignore[arg-type]  # likewise
        directions=tuple(filter(None, first["directions"].split("+"))),  # type: ignore[arg-type]  # likewise
        clean_world="",
        label="",
        conditional=(),
        labels=np.array([int(line["label"]) for line in lines]),
        guarantee=Guarantee(prediction=np.array(predictions), **columns),
    )


def sample_data(run: RunResult, *, trust: bool) -> dict[str, Any]:
    """The labels of every test set, the columns of every certificate and level, and pictures if there are any."""
    sets: dict[str, dict[str, Any]] = {}
    for found in tables(run.directory):
        chosen = sets.setdefault(found.test_set, {"labels": found.labels[:MOST_ROWS].tolist(), "columns": []})
        chosen["total"] = len(found.labels)
        chosen["columns"].append(
            {
                "certificate": found.certificate,
                "level": found.level,
                "prediction": found.guarantee.prediction[:MOST_ROWS].tolist(),
                "radius": [number(floored(value)) for value in found.guarantee.radius[:MOST_ROWS].tolist()],
            }
        )
    why = ""
    if sets:
        pictures, why = pictures_of(run, trust=trust)
        for name, picture in pictures.items():
            if name in sets:
                sets[name]["pictures"] = picture
    return {"sets": sets, "without": why}


def pictures_of(run: RunResult, *, trust: bool) -> tuple[dict[str, dict[str, Any]], str]:
    """The pictures of every test set, or why there are none."""
    facts = run.ledger.facts
    if facts.image_shape is None:
        return {}, "the inputs are no images"
    if run.directory.is_made_by_others and not trust:
        return {}, "the run was not made here, and its data are loaded by what its config says: give --trust"
    from crfl_core.runs.run_data import tested_inputs

    try:
        inputs = tested_inputs(run)
    except CrflError as error:
        return {}, str(error)
    found = {name: sheet(x, facts.image_shape, facts.domain) for name, x in inputs.items()}
    return {name: picture for name, picture in found.items() if picture is not None}, ""


def floored(value: float) -> float:
    """A radius with few digits, never above what it was.

    >>> floored(0.0283859), floored(2.0), floored(float("inf"))
    (0.02838, 2.0, inf)
    """
    if not math.isfinite(value) or value == 0:
        return value
    digits = DIGITS - 1 - math.floor(math.log10(abs(value)))
    down = math.floor(value * 10.0**digits) / 10.0**digits
    return float(f"{min(down, value):.{DIGITS}g}") if down <= value else value
