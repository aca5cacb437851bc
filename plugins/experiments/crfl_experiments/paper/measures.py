"""Numbers of a finished cell that claims are about, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from crfl_experiments.paper.readings import BACKDOORED, Array, Point, Reading

GRID = 100
"""At so many radii curves are compared, from 0 to the largest of a figure."""


@dataclass(frozen=True)
class Measure:
    """Numbers of a cell: one, or one for each of the radii at which the cells of a figure are compared."""

    name: str
    of: Callable[[Reading, Sequence[float]], Array]
    over_radii: bool = False

    def values(self, points: Sequence[Point]) -> list[dict[int, Array]]:
        """The numbers of every point by seed."""
        radii = shared_radii(points) if self.over_radii else []
        return [{seed: self.of(one, radii) for seed, one in point.readings.items()} for point in points]


def shared_radii(points: Sequence[Point]) -> list[float]:
    """Radii from 0 to below the largest of any sample."""
    reach = max((one.samples().reach for point in points for one in point.readings.values()), default=0.0)
    return [reach * number / GRID for number in range(GRID)]


REACH = Measure("largest radius", lambda one, _: np.array([one.samples().reach]))
ACCURACY = Measure("certified accuracy at 0", lambda one, _: one.samples().accuracy([0.0]))
AREA = Measure("area under certified accuracy", lambda one, _: np.array([one.samples().area]))
RATES = Measure("certified rate", lambda one, radii: one.samples().rate(radii), over_radii=True)
COST = Measure("accuracy lost by smoothing", lambda one, _: one.base_accuracy - one.samples().accuracy([0.0]))
NOT_FALLING = Measure("share of later rounds in which the distance does not fall", lambda one, _: rising(one.distances))
REMAINS = Measure(
    "distance in the last round / in the attacked one", lambda one, _: one.distances[-1:] / one.distances[0]
)


def rising(distances: Array) -> Array:
    """The share of steps in which distances do not become smaller."""
    return np.array([(np.diff(distances) >= 0).mean()])


def area_ratio(reading: Reading) -> float:
    """The area of backdoored samples as a part of that of clean ones; infinite if the latter has none."""
    target = reading.target
    clean = reading.samples().without(target).area
    return reading.samples(BACKDOORED).without(target).area / clean if clean else math.inf


SETS_APART = Measure(
    "difference between the areas of backdoored and clean samples", lambda one, _: np.array([abs(area_ratio(one) - 1)])
)


def spread(values: Sequence[float]) -> str:
    """The mean, and the standard deviation over seeds if there are several.

    >>> spread([0.7134]), spread([0.71, 0.73]), spread([1.986, 1.986])
    ('0.713', '0.72 ± 0.014', '1.99')
    """
    mean = f"{fmean(values):.3g}"
    deviation = stdev(values) if len(values) > 1 else 0.0
    return f"{mean} ± {deviation:.2g}" if deviation > 1e-9 * abs(fmean(values)) else mean
