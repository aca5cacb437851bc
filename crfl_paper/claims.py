"""Claims of the paper as tests of numbers over seeds.

Every test gives margins: numbers that are positive where a claim is true, one for each seed in each of its steps, such
as from one noise to the next. A claim holds if every step does: with one seed if its margin is positive, with more if a
one-sided interval of Student's t at 95 % lies above zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Literal, Protocol

import numpy as np

from crfl_paper.readings import BACKDOORED, Array, Point, Reading

Verdict = Literal["holds", "does not hold", "undecided", "not measured"]
Margins = Mapping[str, Sequence[float]]
CONFIDENCE = 0.95
GRID = 100
"""At so many radii curves are compared, from 0 to the largest of a figure."""


def verdict(margins: Margins) -> Verdict:
    """What margins say: the worst of all steps.

    >>> verdict({"1 to 2": [0.1, 0.2, 0.15]}), verdict({"1 to 2": [0.1, -0.3]}), verdict({"1 to 2": [0.1, -0.05]})
    ('holds', 'does not hold', 'undecided')
    >>> verdict({"1 to 2": [0.1]}), verdict({})
    ('holds', 'not measured')
    """
    if not margins:
        return "not measured"
    found = [step(values) for values in margins.values()]
    for worst in ("does not hold", "undecided"):
        if worst in found:
            return worst
    return "holds"


def step(values: Sequence[float]) -> Literal["holds", "does not hold", "undecided"]:
    """What the margins of one step say."""
    mean = fmean(values)
    if not mean > 0:
        return "does not hold"
    if len(values) == 1:
        return "holds"
    from scipy.stats import t

    half = float(t.ppf(CONFIDENCE, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return "holds" if mean > half else "undecided"


class Trial(Protocol):
    """What a claim comes to."""

    @property
    def words(self) -> str:
        """What is tested, in words."""

    def margins(self, points: Sequence[Point]) -> Margins:
        """Positive where the claim is true."""

    def told(self, points: Sequence[Point]) -> str:
        """What was measured, in a line."""


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


@dataclass(frozen=True)
class Ordered:
    """A measure that becomes larger along the axis, or smaller, from each point to the next in its series.

    If it has several numbers, all of them do.
    """

    measure: Measure
    rises: bool = True

    @property
    def words(self) -> str:
        """What is tested."""
        every = " at every radius that one of both reaches" if self.measure.over_radii else ""
        return f"{self.measure.name}{every} {'rises' if self.rises else 'falls'} from each value to the next"

    def margins(self, points: Sequence[Point]) -> Margins:
        """The differences between neighbours, in the right direction."""
        sign = 1.0 if self.rises else -1.0
        found = {}
        pairs = pairwise(zip(points, self.measure.values(points), strict=True))
        for (left, low), (right, high) in pairs:
            if left.series == right.series:
                name = f"{left.series} {left.value:g} to {right.value:g}".strip()
                found[name] = [smallest(low[seed], high[seed], sign) for seed in low.keys() & high.keys()]
        return {name: values for name, values in found.items() if values}

    def told(self, points: Sequence[Point]) -> str:
        """The means."""
        return listed(self.measure, points)


def smallest(low: Array, high: Array, sign: float) -> float:
    """The smallest of some differences. Beyond what both reach, curves are 0: nothing can be said of them there.

    >>> smallest(np.array([0.5, 0.0, 0.0]), np.array([0.7, 0.1, 0.0]), 1.0)
    0.1
    """
    reached = (low != 0) | (high != 0)
    return float(np.min(sign * (high - low)[reached])) if reached.any() else 0.0


@dataclass(frozen=True)
class Within:
    """A measure that stays at or below a number; which number is ours, since the paper says "much" or "very"."""

    measure: Measure
    most: float

    @property
    def words(self) -> str:
        """What is tested."""
        return f"{self.measure.name} is at most {self.most:g}"

    def margins(self, points: Sequence[Point]) -> Margins:
        """How much is left. What is as large as allowed is still allowed."""
        values = zip(points, self.measure.values(points), strict=True)
        return {
            f"{point.series} {point.value:g}".strip(): [self.most - float(one.max()) + 1e-12 for one in each.values()]
            for point, each in values
        }

    def told(self, points: Sequence[Point]) -> str:
        """The means."""
        return listed(self.measure, points)


@dataclass(frozen=True)
class Steady:
    """A measure that stays where it is at the first point, up to a part of it."""

    measure: Measure
    tolerance: float

    @property
    def words(self) -> str:
        """What is tested."""
        return f"{self.measure.name} stays within {self.tolerance:.0%} of that of the first value"

    def margins(self, points: Sequence[Point]) -> Margins:
        """What is left of the tolerance."""
        first, *others = self.measure.values(points)
        found = {}
        for point, each in zip(points[1:], others, strict=True):
            ratios = [float(np.abs(each[seed] / first[seed] - 1).max()) for seed in first.keys() & each.keys()]
            found[f"{point.value:g}"] = [self.tolerance - ratio for ratio in ratios]
        return {name: values for name, values in found.items() if values}

    def told(self, points: Sequence[Point]) -> str:
        """The means."""
        return listed(self.measure, points)


@dataclass(frozen=True)
class Exceeds:
    """A measure that one series has some times larger than another, at every value of the axis."""

    measure: Measure
    series: str
    other: str
    times: float

    @property
    def words(self) -> str:
        """What is tested."""
        return f"{self.measure.name} under {self.series} is at least {self.times:g} times that under {self.other}"

    def margins(self, points: Sequence[Point]) -> Margins:
        """By how much more than that."""
        values = {(point.series, point.value): each for point, each in self._measured(points)}
        found = {}
        for (series, value), each in values.items():
            other = values.get((self.other, value), {})
            if series == self.series:
                ratios = [float((each[seed] / other[seed]).min()) for seed in each.keys() & other.keys()]
                found[f"{value:g}"] = [ratio - self.times for ratio in ratios]
        return {name: margins for name, margins in found.items() if margins}

    def told(self, points: Sequence[Point]) -> str:
        """The means."""
        return listed(self.measure, points)

    def _measured(self, points: Sequence[Point]) -> list[tuple[Point, dict[int, Array]]]:
        return list(zip(points, self.measure.values(points), strict=True))


@dataclass(frozen=True)
class SimilarSets:
    """The area under certified accuracy of backdoored samples is about that of clean ones of the same classes."""

    tolerance: float

    @property
    def words(self) -> str:
        """What is tested."""
        return (
            f"the area under certified accuracy on backdoored samples stays within {self.tolerance:.0%} of that on "
            "clean samples of the same classes, at every point of these figures"
        )

    def margins(self, points: Sequence[Point]) -> Margins:
        """What is left of the tolerance."""
        return {
            f"{point.figure} {point.series} {point.value:g}": [
                self.tolerance - abs(ratio(one) - 1) for one in point.readings.values()
            ]
            for point in points
        }

    def told(self, points: Sequence[Point]) -> str:
        """The range of all ratios."""
        ratios = [ratio(one) for point in points for one in point.readings.values()]
        return f"backdoored / clean: {min(ratios):.3f} to {max(ratios):.3f} over {len(ratios)} runs"


def ratio(reading: Reading) -> float:
    """The area of backdoored samples as a part of that of clean ones; infinite if the latter has none."""
    clean = reading.samples().without(reading.target).area
    return reading.samples(BACKDOORED).area / clean if clean else math.inf


def listed(measure: Measure, points: Sequence[Point]) -> str:
    """The mean of a measure at every point; of a curve its start."""
    parts = []
    for point, each in zip(points, measure.values(points), strict=True):
        mean = fmean(float(one[0]) for one in each.values())
        parts.append(f"{mean:.3g} at {point.series + ' ' if point.series else ''}{point.value:g}")
    return f"{measure.name}{' at 0' if measure.over_radii else ''}: {', '.join(parts)}"
