"""Certified accuracy of a run at radii of one's choice: read off its curve, or counted again from its certificates."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crfl_core.reporting.metrics import Curve, Metrics
from crfl_core.runs.run_directory import RunDirectory


class Question(NamedTuple):
    """What a curve is about."""

    certificate: str
    level: str
    test_set: str

    @property
    def radius_name(self) -> str:
        """What its radius counts."""
        return {"feature": "radius", "sample": "poison ratio", "client": "clients"}.get(self.level, "radius")


class Measured:
    """The numbers of one finished run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._directory = RunDirectory(path)

    @cached_property
    def metrics(self) -> Metrics:
        """What its metrics.json holds."""
        return self._directory.read_facts("metrics.json", Metrics)

    @cached_property
    def curves(self) -> dict[Question, Curve]:
        """Its curves by what they are about."""
        return {Question(one.certificate, one.level, one.test_set): one for one in self.metrics.curves}

    def certified(self, question: Question, radii: Sequence[float]) -> list[float] | None:
        """The share of samples that are right and certified at each radius; None if nobody asked that."""
        curve = self.curves.get(question)
        if curve is None:
            return None
        known = dict(zip(curve.radii, curve.certified_accuracy, strict=True))
        if all(radius in known for radius in radii):
            return [known[radius] for radius in radii]
        reached = self._reached(question)
        return [float((reached >= radius).mean()) for radius in radii]

    def _reached(self, question: Question) -> NDArray[np.float64]:
        """The radius of every sample that is predicted right, -inf for the others."""
        text = self._directory.read(f"certificates/{question.certificate}.csv").decode()
        return np.array(
            [
                float(row["radius"] or "-inf") if row["prediction"] == row["label"] else -math.inf
                for row in csv.DictReader(io.StringIO(text))
                if (row["level"], row["set"]) == (question.level, question.test_set)
            ]
        )


def shared_radii(curves: Sequence[Curve]) -> list[float]:
    """Radii at which curves can be compared: those of the one that reaches furthest, without infinity."""
    finite = [[radius for radius in curve.radii if math.isfinite(radius)] for curve in curves]
    return max(finite, key=lambda radii: radii[-1] if radii else -1.0)
