"""Claims of the paper as tests of numbers over seeds.

Every test gives margins: numbers that are positive where a claim is true, one for each seed in each of its steps, such
as from one noise to the next. A claim holds if every step does: with one seed if its margin is positive, with more if a
one-sided interval of Student's t at 95 % lies above zero.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Literal, Protocol

import numpy as np

from crfl_experiments.paper.readings import SETS_APART, Array, Measure, Point, area_ratio, shared_radii, spread

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


class Compared(OfMeasure, ABC):
    """A test of points against others, seed by seed."""

    def margins(self, points: Sequence[Point]) -> Margins:
        """What each pair leaves. Seeds that only one of both has do not count, nor pairs that share none."""
        found = {
            name: [self.margin(mine[seed], other[seed]) for seed in sorted(mine.keys() & other.keys())]
            for name, mine, other in self.pairs(points, self.measure.values(points))
        }
        return {name: values for name, values in found.items() if values}

    @abstractmethod
    def pairs(self, points: Sequence[Point], measured: Sequence[BySeed]) -> Iterable[tuple[str, BySeed, BySeed]]:
        """What is compared with what, under the name of the step."""

    @abstractmethod
    def margin(self, mine: Array, other: Array) -> float:
        """Positive where the claim is true of a pair."""


@dataclass(frozen=True)
class Ordered(Compared):
    """A measure that becomes larger along the axis, or smaller, from each point to the next in its series.

    If it has several numbers, all of them do.
    """

    rises: bool = True

    @property
    def words(self) -> str:
        """What is tested."""
        every = " at every radius that one of both reaches" if self.measure.over_radii else ""
        return f"{self.measure.name}{every} {'rises' if self.rises else 'falls'} from each value to the next"

    def pairs(self, points: Sequence[Point], measured: Sequence[BySeed]) -> Iterable[tuple[str, BySeed, BySeed]]:
        """Neighbours."""
        for (left, low), (right, high) in pairwise(zip(points, measured, strict=True)):
            if left.series == right.series:
                yield f"{name_of(left)} to {right.value:g}", low, high

    def margin(self, mine: Array, other: Array) -> float:
        """The difference, in the right direction."""
        return smallest(mine, other, self._sign)

    def told(self, points: Sequence[Point]) -> str:
        """The means; of curves also from which radius on a step holds, if not at every one."""
        if not self.measure.over_radii:
            return super().told(points)
        radii = shared_radii(points)
        found = []
        for name, low, high in self.pairs(points, self.measure.values(points)):
            if seeds := low.keys() & high.keys():
                first, second = (np.mean([each[seed] for seed in seeds], axis=0) for each in (low, high))
                found.append(f"{name} from radius {begin(first, second, radii, self._sign):.3g} on")
        return f"{super().told(points)}; it does so from {', '.join(found)}"

    @property
    def _sign(self) -> float:
        return 1.0 if self.rises else -1.0


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
            f"{point.figure} {name_of(point)}": [self.most - float(one.max()) + 1e-12 for one in each.values()]
            for point, each in zip(points, self.measure.values(points), strict=True)
        }


@dataclass(frozen=True)
class SimilarSets(Within):
    """The area under certified accuracy of backdoored samples is about that of clean ones of the same classes."""

    measure: Measure = SETS_APART
    most: float = 0.1

    @property
    def words(self) -> str:
        """What is tested."""
        return (
            f"the area under certified accuracy on backdoored samples stays within {self.most:.0%} of that on "
            "clean samples of the same classes, at every point of these figures"
        )

    def told(self, points: Sequence[Point]) -> str:
        """The range of all ratios."""
        ratios = [one for point in points for one in point.of(area_ratio)]
        return f"backdoored / clean: {min(ratios):.3f} to {max(ratios):.3f} over {len(ratios)} runs"


@dataclass(frozen=True)
class Steady(Compared):
    """A measure that stays where it is at the first point, up to a part of it."""

    tolerance: float

    @property
    def words(self) -> str:
        """What is tested."""
        return f"{self.measure.name} stays within {self.tolerance:.0%} of that of the first value"

    def pairs(self, points: Sequence[Point], measured: Sequence[BySeed]) -> Iterable[tuple[str, BySeed, BySeed]]:
        """Every other point and the first."""
        return ((name_of(point), each, measured[0]) for point, each in zip(points[1:], measured[1:], strict=True))

    def margin(self, mine: Array, other: Array) -> float:
        """What is left of the tolerance."""
        return self.tolerance - float(np.abs(mine / other - 1).max())


@dataclass(frozen=True)
class Exceeds(Compared):
    """A measure that one series has some times larger than another, at every value of the axis."""

    series: str
    other: str
    times: float

    @property
    def words(self) -> str:
        """What is tested."""
        return f"{self.measure.name} under {self.series} is at least {self.times:g} times that under {self.other}"

    def pairs(self, points: Sequence[Point], measured: Sequence[BySeed]) -> Iterable[tuple[str, BySeed, BySeed]]:
        """Points of both series at the same value."""
        known = list(zip(points, measured, strict=True))
        others = {point.value: each for point, each in known if point.series == self.other}
        return (
            (f"{point.value:g}", each, others.get(point.value, {}))
            for point, each in known
            if point.series == self.series
        )

    def margin(self, mine: Array, other: Array) -> float:
        """By how much more than that."""
        return float((mine / other).min()) - self.times


def name_of(point: Point) -> str:
    """Its series and its value."""
    return f"{point.series} {point.value:g}".strip()
