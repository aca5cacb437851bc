"""Readings of finished cells: samples with their radii, points of figures, and measures of claims.

The paper certifies the first 5,000 of MNIST's 10,000 test images. Runs certify all: a `Reading` shows the first ones,
and `Reading.everything` all of them.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crfl_core import formulas
from crfl_core.training.clean_twin import read_kept_model

if TYPE_CHECKING:
    from crfl_core.plugin_api.dataset import Dataset
    from crfl_experiments.sweeps.results import CellResult

Array = NDArray[np.float64]
PAPER = "paper"
CLEAN = "clean"
BACKDOORED = "backdoored"
SERIES = "aggregation"
NOISE = "server.noise_std"


@dataclass(frozen=True)
class Samples:
    """Test samples: labels, whether they are predicted right, and radii, -inf for an abstention."""

    labels: NDArray[np.int64]
    right: NDArray[np.bool_]
    radii: Array

    def rate(self, radii: Sequence[float]) -> Array:
        """Return the share that is certified at each radius."""
        return np.array([(self.radii >= radius).mean() for radius in radii])

    def accuracy(self, radii: Sequence[float]) -> Array:
        """Return the share that is certified at each radius and right."""
        return np.array([(self.right & (self.radii >= radius)).mean() for radius in radii])

    @property
    def reach(self) -> float:
        """Return the critical radius: the largest of a sample that is right."""
        return float(self.radii[self.right].max(initial=0.0))

    @property
    def area(self) -> float:
        """Return the area under certified accuracy as a function of the radius."""
        return float(np.where(self.right, np.maximum(self.radii, 0.0), 0.0).mean())

    def without(self, label: int | None) -> Samples:
        """Return all samples of other classes."""
        return self.of(self.labels != label)

    def of(self, kept: NDArray[np.bool_] | slice) -> Samples:
        """Return some of the samples."""
        return Samples(self.labels[kept], self.right[kept], self.radii[kept])


@dataclass(frozen=True)
class Reading:
    """One finished cell. `loose_round` is the round whose L_Z counts; None means the attacked one.

    Only the `first` test samples count, if that is given. `certificate` is the one whose table is read.
    """

    cell: CellResult
    loose_round: int | None = None
    first: int | None = None
    certificate: str = PAPER
    twin: CellResult | None = None

    @property
    def seed(self) -> int:
        """Return the seed of its run."""
        return int(self.cell.settings["seed"])

    @cached_property
    def everything(self) -> Reading:
        """Return the reading with all test samples."""
        whole = replace(self, first=None)
        vars(whole)["_sets"] = self._sets  # a table is read once
        return whole

    @cached_property
    def base_accuracy(self) -> float:
        """Return the accuracy of the trained model itself, without votes."""
        inputs, labels = load_test_samples(self.cell.cell.config.dataset)
        blocks = self.cell.run.layout.unflatten(self.cell.run.parameters)
        weights, *bias = (block.double().numpy() for block in blocks.values())
        logits = inputs[: self.first] @ weights.T + (bias[0] if bias else 0.0)
        return float((logits.argmax(axis=1) == labels[: self.first]).mean())

    @cached_property
    def target(self) -> int | None:
        """Return the class of the backdoor."""
        backdoor = self.cell.run.metrics.backdoor
        return None if backdoor is None else backdoor.target

    def samples(self, test_set: str = CLEAN) -> Samples:
        """Return the samples of a test set."""
        found = self._sets[test_set]
        clean = self._sets[CLEAN]
        if self.first is None:
            return found
        labels = clean.labels[: self.first]  # a backdoored set may leave out the target class
        return found.of(slice(len(labels) if len(found.labels) == len(clean.labels) else sum(labels != self.target)))

    @cached_property
    def distances(self) -> Array:
        """Return the L2 distances of the clipped models to the clean twin.

        There is one distance for every round from the attacked one on.
        """
        assert self.twin is not None
        run = self.cell.run
        twin = self.twin.run
        numbers = range(self.attacked, run.ledger.facts.rounds + 1)
        return np.array(
            [np.linalg.norm(read_kept_model(run, number) - read_kept_model(twin, number)) for number in numbers]
        )

    @cached_property
    def attacked(self) -> int:
        """Return the attacked round."""
        return min(self.cell.run.ledger.facts.attack_rounds)

    @cached_property
    def _sets(self) -> dict[str, Samples]:
        text = self.cell.run.directory.read(f"certificates/{self.certificate}.csv").decode()
        rows = list(csv.DictReader(io.StringIO(text)))
        factor = self._loosened
        return {
            name: samples_of([row for row in rows if row["set"] == name], factor)
            for name in dict.fromkeys(row["set"] for row in rows)
        }

    @cached_property
    def _loosened(self) -> float:
        """Return the factor that makes radii use another round's L_Z."""
        if self.loose_round is None:
            return 1.0
        ledger = self.cell.run.ledger
        norms = ledger.round(self.attacked).clip_norm, ledger.round(self.loose_round).clip_norm
        return formulas.gradient_lipschitz(norms[0]) / formulas.gradient_lipschitz(norms[1])


def samples_of(rows: Sequence[dict[str, str]], factor: float = 1.0) -> Samples:
    """Build samples from rows of a certificate's table at the feature level."""
    radii = [-math.inf if row["abstained"] == "True" else float(row["radius"]) * factor for row in rows]
    return Samples(
        np.array([int(row["label"]) for row in rows]),
        np.array([row["prediction"] == row["label"] for row in rows], bool),
        np.array(radii),
    )


@lru_cache(maxsize=1)
def load_test_samples(dataset: Dataset) -> tuple[Array, NDArray[np.int64]]:
    """Load the scaled test inputs and the labels of a dataset.

    The paper has no feature maps.
    """
    data = dataset.load()
    return np.asarray(data.test_x, np.float64), np.asarray(data.test_y)


@dataclass(frozen=True)
class Point:
    """Cells that differ only in their seeds, by seed; `value` is their place on the axis."""

    figure: str
    value: float
    series: str
    readings: dict[int, Reading] = field(repr=False)

    @property
    def everything(self) -> Point:
        """Return the point with all test samples."""
        return replace(self, readings={seed: one.everything for seed, one in self.readings.items()})

    def of(self, measure: Callable[[Reading], float]) -> list[float]:
        """Return a number of every seed."""
        return [measure(one) for one in self.readings.values()]


@dataclass(frozen=True)
class Source:
    """Way to read the cells of a figure: along which key, and with which options of `Reading`."""

    figure: str
    axis: str
    loose_round: int | None = None
    first: int | None = None
    certificate: str = PAPER


def group_cells(source: Source, cells: Iterable[CellResult]) -> list[Point]:
    """Group the cells of a figure by series and value.

    The points are in ascending order. Reference cells and unfinished cells are left out.
    """
    finished = [one for one in cells if one.note.state == "finished"]
    found: dict[tuple[str, float], dict[int, Reading]] = {}
    twins = {one.settings["seed"]: one for one in finished if one.cell.config.attack is None}
    for one in finished:
        if is_reference(one):
            continue
        seed = one.settings["seed"]
        reading = Reading(one, source.loose_round, source.first, source.certificate, twins.get(seed))
        place = series_of(one.settings), float(one.settings.get(source.axis, 0.0))
        found.setdefault(place, {})[seed] = reading
    return [Point(source.figure, value, series, found[series, value]) for series, value in sorted(found)]


def noise_free_point(source: Source, cells: Iterable[CellResult]) -> Point | None:
    """Return the cells trained without noise.

    The paper's radius does not exist for them. The result is None if there are none.
    """
    finished = [one for one in cells if one.note.state == "finished" and is_noise_free(one)]
    readings = {one.settings["seed"]: Reading(one, first=source.first) for one in finished}
    return Point(source.figure, 0.0, "", readings) if readings else None


def is_reference(cell: CellResult) -> bool:
    """Return whether other cells are compared with a cell.

    Such a cell is a clean twin, or a noise-free run for the accuracy.
    """
    return not cell.cell.config.certificates and (cell.cell.config.attack is None or is_noise_free(cell))


def is_noise_free(cell: CellResult) -> bool:
    """Return whether a cell was trained without noise where others have some."""
    return cell.settings.get(NOISE) == 0


def series_of(settings: dict[str, Any]) -> str:
    """Return the line of a figure to which a cell belongs."""
    return str(settings.get(SERIES, ""))


GRID_POINTS = 100
"""Number of radii at which curves are compared, from 0 to the largest of a figure."""


@dataclass(frozen=True)
class Measure:
    """Numbers of a cell: one, or one for each radius at which the cells of a figure are compared."""

    name: str
    of: Callable[[Reading, Sequence[float]], Array]
    over_radii: bool = False

    def values(self, points: Sequence[Point]) -> list[dict[int, Array]]:
        """Return the numbers of every point by seed."""
        radii = common_radii(points) if self.over_radii else []
        return [{seed: self.of(one, radii) for seed, one in point.readings.items()} for point in points]


def common_radii(points: Sequence[Point]) -> list[float]:
    """Return radii from 0 to below the largest of any sample."""
    reach = max((one.samples().reach for point in points for one in point.readings.values()), default=0.0)
    return [reach * number / GRID_POINTS for number in range(GRID_POINTS)]


REACH = Measure("largest radius", lambda one, _: np.array([one.samples().reach]))
ACCURACY = Measure("certified accuracy at 0", lambda one, _: one.samples().accuracy([0.0]))
AREA = Measure("area under certified accuracy", lambda one, _: np.array([one.samples().area]))
RATES = Measure("certified rate", lambda one, radii: one.samples().rate(radii), over_radii=True)
COST = Measure("accuracy lost by smoothing", lambda one, _: one.base_accuracy - one.samples().accuracy([0.0]))
NOT_FALLING = Measure(
    "share of later rounds in which the distance does not fall", lambda one, _: rising_share(one.distances)
)
REMAINS = Measure(
    "distance in the last round / in the attacked one", lambda one, _: one.distances[-1:] / one.distances[0]
)


def rising_share(distances: Array) -> Array:
    """Return the share of steps in which distances do not become smaller."""
    return np.array([(np.diff(distances) >= 0).mean()])


def area_ratio(reading: Reading) -> float:
    """Divide the area of backdoored samples by that of clean ones.

    The result is infinite if the area of clean samples is zero.
    """
    target = reading.target
    clean = reading.samples().without(target).area
    return reading.samples(BACKDOORED).without(target).area / clean if clean else math.inf


SETS_APART = Measure(
    "difference between the areas of backdoored and clean samples", lambda one, _: np.array([abs(area_ratio(one) - 1)])
)


def format_mean(values: Sequence[float]) -> str:
    """Format the mean of some values.

    If they differ, the text also has their standard deviation over seeds.

    >>> format_mean([0.7134]), format_mean([0.71, 0.73]), format_mean([1.986, 1.986])
    ('0.713', '0.72 ± 0.014', '1.99')
    """
    mean = f"{fmean(values):.3g}"
    deviation = stdev(values) if len(values) > 1 else 0.0
    return f"{mean} ± {deviation:.2g}" if deviation > 1e-9 * abs(fmean(values)) else mean
