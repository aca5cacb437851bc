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

from crfl_paper.measures import Measure, area_ratio, shared_radii, spread
from crfl_paper.readings import Array, Point

Verdict = Literal["holds", "does not hold", "undecided", "not measured"]
Margins = Mapping[str, Sequence[float]]
BySeed = Mapping[int, Array]
CONFIDENCE = 0.95


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
class OfMeasure:
    """A test of one measure, which tells its means."""

    measure: Measure

    def told(self, points: Sequence[Point]) -> str:
        """The mean at every point, with the deviation over seeds; of a curve its start."""
        parts = [
            f"{spread([float(one[0]) for one in each.values()])} at {name_of(point)}"
            for point, each in zip(points, self.measure.values(points), strict=True)
        ]
        return f"{self.measure.name}{' at 0' if self.measure.over_radii else ''}: {', '.join(parts)}"


@dataclass(frozen=True)
class Ordered(OfMeasure):
    """A measure that becomes larger along the axis, or smaller, from each point to the next in its series.

    If it has several numbers, all of them do.
    """

    rises: bool = True

    @property
    def words(self) -> str:
        """What is tested."""
        every = " at every radius that one of both reaches" if self.measure.over_radii else ""
        return f"{self.measure.name}{every} {'rises' if self.rises else 'falls'} from each value to the next"

    def margins(self, points: Sequence[Point]) -> Margins:
        """The differences between neighbours, in the right direction."""
        sign = 1.0 if self.rises else -1.0
        return without_empty(
            {
                f"{name_of(left)} to {right.value:g}": both(low, high, lambda one, other: smallest(one, other, sign))
                for (left, low), (right, high) in pairwise(zip(points, self.measure.values(points), strict=True))
                if left.series == right.series
            }
        )

    def told(self, points: Sequence[Point]) -> str:
        """The means; of curves also from which radius on a step holds, if not at every one."""
        if not self.measure.over_radii:
            return super().told(points)
        sign, radii = 1.0 if self.rises else -1.0, shared_radii(points)
        found = []
        for (left, low), (right, high) in pairwise(zip(points, self.measure.values(points), strict=True)):
            if left.series == right.series and (seeds := low.keys() & high.keys()):
                first, second = (np.mean([each[seed] for seed in seeds], axis=0) for each in (low, high))
                start = begin(first, second, radii, sign)
                found.append(f"{name_of(left)} to {right.value:g} from radius {start:.3g} on")
        return f"{super().told(points)}; it does so from {', '.join(found)}"


def begin(low: Array, high: Array, radii: Sequence[float], sign: float) -> float:
    """The radius from which on one curve lies above another, as far as one of both reaches; infinite if nowhere.

    >>> begin(np.array([0.9, 0.5, 0.2, 0.0]), np.array([0.8, 0.6, 0.3, 0.0]), [0.0, 1.0, 2.0, 3.0], 1.0)
    1.0
    """
    reached = (low != 0) | (high != 0)
    wrong = np.flatnonzero(reached & (sign * (high - low) <= 0))
    first = int(wrong[-1]) + 1 if len(wrong) else 0
    return float(radii[first]) if first < int(reached.sum()) else math.inf


def smallest(low: Array, high: Array, sign: float) -> float:
    """The smallest of some differences. Beyond what both reach, curves are 0: nothing can be said of them there.

    >>> smallest(np.array([0.5, 0.0, 0.0]), np.array([0.7, 0.1, 0.0]), 1.0)
    0.1
    """
    reached = (low != 0) | (high != 0)
    return float(np.min(sign * (high - low)[reached])) if reached.any() else 0.0


@dataclass(frozen=True)
class Within(OfMeasure):
    """A measure that stays at or below a number; which number is ours, since the paper says "much" or "very"."""

    most: float

    @property
    def words(self) -> str:
        """What is tested."""
        return f"{self.measure.name} is at most {self.most:g}"

    def margins(self, points: Sequence[Point]) -> Margins:
        """How much is left. What is as large as allowed is still allowed."""
        return {
            name_of(point): [self.most - float(one.max()) + 1e-12 for one in each.values()]
            for point, each in zip(points, self.measure.values(points), strict=True)
        }


@dataclass(frozen=True)
class Steady(OfMeasure):
    """A measure that stays where it is at the first point, up to a part of it."""

    tolerance: float

    @property
    def words(self) -> str:
        """What is tested."""
        return f"{self.measure.name} stays within {self.tolerance:.0%} of that of the first value"

    def margins(self, points: Sequence[Point]) -> Margins:
        """What is left of the tolerance."""
        first, *others = self.measure.values(points)
        return without_empty(
            {
                name_of(point): both(each, first, lambda one, start: self.tolerance - off(one, start))
                for point, each in zip(points[1:], others, strict=True)
            }
        )


def off(one: Array, other: Array) -> float:
    """By which part of them some numbers differ from others, at most."""
    return float(np.abs(one / other - 1).max())


@dataclass(frozen=True)
class Exceeds(OfMeasure):
    """A measure that one series has some times larger than another, at every value of the axis."""

    series: str
    other: str
    times: float

    @property
    def words(self) -> str:
        """What is tested."""
        return f"{self.measure.name} under {self.series} is at least {self.times:g} times that under {self.other}"

    def margins(self, points: Sequence[Point]) -> Margins:
        """By how much more than that."""
        measured = list(zip(points, self.measure.values(points), strict=True))
        others = {point.value: each for point, each in measured if point.series == self.other}
        return without_empty(
            {
                f"{point.value:g}": both(
                    each, others.get(point.value, {}), lambda one, other: float((one / other).min()) - self.times
                )
                for point, each in measured
                if point.series == self.series
            }
        )


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
            f"{point.figure} {name_of(point)}": [self.tolerance - abs(one - 1) for one in point.of(area_ratio)]
            for point in points
        }

    def told(self, points: Sequence[Point]) -> str:
        """The range of all ratios."""
        ratios = [one for point in points for one in point.of(area_ratio)]
        return f"backdoored / clean: {min(ratios):.3f} to {max(ratios):.3f} over {len(ratios)} runs"


def both(mine: BySeed, other: BySeed, compared: Callable[[Array, Array], float]) -> list[float]:
    """What a comparison finds with each of the seeds that two points share."""
    return [compared(mine[seed], other[seed]) for seed in sorted(mine.keys() & other.keys())]


def without_empty(margins: Margins) -> Margins:
    """Steps of which nothing was measured say nothing."""
    return {name: values for name, values in margins.items() if values}


def name_of(point: Point) -> str:
    """Its series and its value."""
    return f"{point.series} {point.value:g}".strip()
