"""What was measured: the samples of a finished cell with their radii, and cells by what was varied."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfl_core.extend import formulas
from crfl_sweeps.result import CellResult

Array = NDArray[np.float64]
CERTIFICATE = "certificates/paper.csv"
CLEAN, BACKDOORED = "clean", "backdoored"
SERIES = "aggregation"
PARAMETERS = "parameters"


@dataclass(frozen=True)
class Samples:
    """Test samples: their labels, whether they are predicted right, and their radii, -inf of an abstention."""

    labels: NDArray[np.int64]
    right: NDArray[np.bool_]
    radii: Array

    def rate(self, radii: Sequence[float]) -> Array:
        """The share that is certified at each radius."""
        return np.array([(self.radii >= radius).mean() for radius in radii])

    def accuracy(self, radii: Sequence[float]) -> Array:
        """The share that is certified at each radius and right."""
        return np.array([(self.right & (self.radii >= radius)).mean() for radius in radii])

    @property
    def reach(self) -> float:
        """The critical radius: the largest of a sample that is right."""
        return float(self.radii[self.right].max(initial=0.0))

    @property
    def area(self) -> float:
        """The area under certified accuracy as a function of the radius."""
        return float(np.where(self.right, np.maximum(self.radii, 0.0), 0.0).mean())

    def without(self, label: int | None) -> Samples:
        """All samples of other classes."""
        kept = self.labels != label
        return Samples(self.labels[kept], self.right[kept], self.radii[kept])


@dataclass(frozen=True)
class Reading:
    """One finished cell. `loose_round` is the round whose L_Z counts, the attacked one if None.

    `twin` is the run without the attack and with the same seed, where a figure has one.
    """

    cell: CellResult
    loose_round: int | None = None
    twin: CellResult | None = None

    @property
    def seed(self) -> int:
        """The seed of its run."""
        return int(self.cell.settings["seed"])

    @cached_property
    def base_accuracy(self) -> float:
        """The accuracy of the trained model itself, which no noise votes about."""
        return self.cell.run.metrics.accuracy

    @cached_property
    def target(self) -> int | None:
        """The class of the backdoor."""
        backdoor = self.cell.run.metrics.backdoor
        return None if backdoor is None else backdoor.target

    def samples(self, test_set: str = CLEAN) -> Samples:
        """The samples of a test set."""
        return self._sets[test_set]

    @cached_property
    def distances(self) -> Array:
        """The L2 distance of the clipped models to those of the twin from the attacked round on."""
        assert self.twin is not None
        first = min(self.cell.run.ledger.facts.attack_rounds)
        pairs = ((self._model(self.cell, number), self._model(self.twin, number)) for number in self._rounds(first))
        return np.array([np.linalg.norm(mine - other) for mine, other in pairs])

    @cached_property
    def attacked(self) -> int:
        """The attacked round."""
        return min(self.cell.run.ledger.facts.attack_rounds)

    def _rounds(self, first: int) -> Iterable[int]:
        return range(first, self.cell.run.ledger.facts.rounds + 1)

    @staticmethod
    def _model(cell: CellResult, number: int) -> Array:
        return np.asarray(cell.run.directory.read_resampled(number)[PARAMETERS], np.float64)

    @cached_property
    def _sets(self) -> dict[str, Samples]:
        text = self.cell.run.directory.read(CERTIFICATE).decode()
        rows = list(csv.DictReader(io.StringIO(text)))
        factor = self._loosened
        return {
            name: samples_of([row for row in rows if row["set"] == name], factor)
            for name in dict.fromkeys(row["set"] for row in rows)
        }

    @cached_property
    def _loosened(self) -> float:
        """What radii are multiplied with, so that they count with the L_Z of another round."""
        if self.loose_round is None:
            return 1.0
        ledger = self.cell.run.ledger
        norms = ledger.round(self.attacked).clip_norm, ledger.round(self.loose_round).clip_norm
        return formulas.gradient_lipschitz(norms[0]) / formulas.gradient_lipschitz(norms[1])


def samples_of(rows: Sequence[dict[str, str]], factor: float = 1.0) -> Samples:
    """Rows of a certificate's table at the feature level."""
    radii = [-math.inf if row["abstained"] == "True" else float(row["radius"]) * factor for row in rows]
    return Samples(
        np.array([int(row["label"]) for row in rows]),
        np.array([row["prediction"] == row["label"] for row in rows], bool),
        np.array(radii),
    )


@dataclass(frozen=True)
class Point:
    """Cells that differ in nothing but their seeds, by seed; `value` is their place on the axis."""

    figure: str
    value: float
    series: str
    readings: dict[int, Reading] = field(repr=False)


def points_of(figure: str, cells: Iterable[CellResult], axis: str, loose_round: int | None = None) -> list[Point]:
    """Cells of a figure by series and value, each in ascending order; the twin of an attack is no point of its own."""
    finished = [one for one in cells if one.note.state == "finished"]
    twins = {one.settings["seed"]: one for one in finished if one.run.config.attack is None}
    found: dict[tuple[str, float], dict[int, Reading]] = {}
    for one in finished:
        if one.run.config.attack is None:
            continue
        reading = Reading(one, loose_round, twins.get(one.settings["seed"]))
        place = series_of(one.settings), float(one.settings[axis])
        found.setdefault(place, {})[reading.seed] = reading
    return [Point(figure, value, series, found[series, value]) for series, value in sorted(found)]


def series_of(settings: dict[str, Any]) -> str:
    """Which of several lines a cell belongs to."""
    return str(settings.get(SERIES, ""))
