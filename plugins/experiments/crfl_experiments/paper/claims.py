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

from crfl_experiments.paper.readings import SETS_APART, Array, Measure, Point, area_ratio, common_radii, format_mean

Verdict = Literal["holds", "does not hold", "undecided", "not measured"]
Margins = Mapping[str, Sequence[float]]
BySeed = Mapping[int, Array]
CONFIDENCE = 0.95


def judge_claim(margins: Margins) -> Verdict:
    """Return the verdict of margins: the worst of all steps.

    >>> judge_claim({"1 to 2": [0.1, 0.2, 0.15]}), judge_claim({"1 to 2": [0.1, -0.3]})
    ('holds', 'does not hold')
    >>> judge_claim({"1 to 2": [0.1, -0.05]})
    'undecided'
    >>> judge_claim({"1 to 2": [0.1]}), judge_claim({})
    ('holds', 'not measured')
    """
    if not margins:
        return "not measured"
    found = [judge_step(values) for values in margins.values()]
    for worst in ("does not hold", "undecided"):
        if worst in found:
            return worst
    return "holds"


def judge_step(values: Sequence[float]) -> Literal["holds", "does not hold", "undecided"]:
    """Return the verdict of the margins of one step."""
    mean = fmean(values)
    if not mean > 0:
        return "does not hold"
    if len(values) == 1:
        return "holds"
    from scipy.stats import t

    half = float(t.ppf(CONFIDENCE, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return "holds" if mean > half else "undecided"


class ClaimTest(Protocol):
    """Test that a claim comes down to."""

    @property
    def words(self) -> str:
        """Return what is tested, in words."""

    def margins(self, points: Sequence[Point]) -> Margins:
        """Return numbers that are positive where the claim is true."""

    def measured_text(self, points: Sequence[Point]) -> str:
        """Return what was measured, in a line."""


@dataclass(frozen=True)
class MeasureTest:
    """Test of one measure, which reports its means."""

    measure: Measure

    def measured_text(self, points: Sequence[Point]) -> str:
        """Return the mean at every point, with the deviation over seeds.

        For a curve this is the mean at its start.
        """
        parts = [
            f"{format_mean([float(one[0]) for one in each.values()])} at {point_name(point)}"
            for point, each in zip(points, self.measure.values(points), strict=True)
        ]
        return f"{self.measure.name}{' at 0' if self.measure.over_radii else ''}: {', '.join(parts)}"


class PairTest(MeasureTest, ABC):
    """Test of points against others, seed by seed."""

    def margins(self, points: Sequence[Point]) -> Margins:
        """Return the margin of each pair for the seeds that both have."""
        found = {
            name: [self.margin(mine[seed], other[seed]) for seed in sorted(mine.keys() & other.keys())]
            for name, mine, other in self.pairs(points, self.measure.values(points))
        }
        return {name: values for name, values in found.items() if values}

    @abstractmethod
    def pairs(self, points: Sequence[Point], measured: Sequence[BySeed]) -> Iterable[tuple[str, BySeed, BySeed]]:
        """Yield what is compared with what, under the name of the step."""

    @abstractmethod
    def margin(self, mine: Array, other: Array) -> float:
        """Return a positive number where the claim holds for a pair."""


@dataclass(frozen=True)
class Ordered(PairTest):
    """Measure that rises, or falls, from each point of a series to the next.

    If it has several numbers, all of them do.
    """

    rises: bool = True

    @property
    def words(self) -> str:
        """Return what is tested."""
        every = " at every radius that one of both reaches" if self.measure.over_radii else ""
        return f"{self.measure.name}{every} {'rises' if self.rises else 'falls'} from each value to the next"

    def pairs(self, points: Sequence[Point], measured: Sequence[BySeed]) -> Iterable[tuple[str, BySeed, BySeed]]:
        """Yield neighbours."""
        for (left, low), (right, high) in pairwise(zip(points, measured, strict=True)):
            if left.series == right.series:
                yield f"{point_name(left)} to {right.value:g}", low, high

    def margin(self, mine: Array, other: Array) -> float:
        """Return the difference, in the claimed direction."""
        return smallest_difference(mine, other, self._sign)

    def measured_text(self, points: Sequence[Point]) -> str:
        """Return the means and, of curves, the first valid radius.

        The step of the claim holds from that radius on.
        """
        if not self.measure.over_radii:
            return super().measured_text(points)
        radii = common_radii(points)
        found = []
        for name, low, high in self.pairs(points, self.measure.values(points)):
            if seeds := low.keys() & high.keys():
                first, second = (np.mean([each[seed] for seed in seeds], axis=0) for each in (low, high))
                found.append(f"{name} from radius {first_radius(first, second, radii, self._sign):.3g} on")
        return f"{super().measured_text(points)}; it does so from {', '.join(found)}"

    @property
    def _sign(self) -> float:
        return 1.0 if self.rises else -1.0


def first_radius(low: Array, high: Array, radii: Sequence[float], sign: float) -> float:
    """Return the radius from which one curve lies above another.

    The result is infinite if there is none.

    >>> first_radius(np.array([0.9, 0.5, 0.2, 0.0]), np.array([0.8, 0.6, 0.3, 0.0]), [0.0, 1.0, 2.0, 3.0], 1.0)
    1.0
    """
    reached = (low != 0) | (high != 0)
    wrong = np.flatnonzero(reached & (sign * (high - low) <= 0))
    first = int(wrong[-1]) + 1 if len(wrong) else 0
    return float(radii[first]) if first < int(reached.sum()) else math.inf


def smallest_difference(low: Array, high: Array, sign: float) -> float:
    """Return the smallest difference of two curves.

    It is taken over radii that one of the two reaches.

    >>> smallest_difference(np.array([0.5, 0.0, 0.0]), np.array([0.7, 0.1, 0.0]), 1.0)
    0.1
    """
    reached = (low != 0) | (high != 0)
    return float(np.min(sign * (high - low)[reached])) if reached.any() else 0.0


@dataclass(frozen=True)
class Within(MeasureTest):
    """Measure that stays at or below a number, which is ours: the paper says "much" or "very"."""

    most: float

    @property
    def words(self) -> str:
        """Return what is tested."""
        return f"{self.measure.name} is at most {self.most:g}"

    def margins(self, points: Sequence[Point]) -> Margins:
        """Return the distance to the limit.

        A value at the limit is allowed.
        """
        return {
            f"{point.figure} {point_name(point)}": [self.most - float(one.max()) + 1e-12 for one in each.values()]
            for point, each in zip(points, self.measure.values(points), strict=True)
        }


@dataclass(frozen=True)
class SimilarSets(Within):
    """Area under certified accuracy of backdoored samples that is about that of clean ones."""

    measure: Measure = SETS_APART
    most: float = 0.1

    @property
    def words(self) -> str:
        """Return what is tested."""
        return (
            f"the area under certified accuracy on backdoored samples stays within {self.most:.0%} of that on "
            "clean samples of the same classes, at every point of these figures"
        )

    def measured_text(self, points: Sequence[Point]) -> str:
        """Return the range of all ratios."""
        ratios = [one for point in points for one in point.of(area_ratio)]
        return f"backdoored / clean: {min(ratios):.3f} to {max(ratios):.3f} over {len(ratios)} runs"


@dataclass(frozen=True)
class Steady(PairTest):
    """Measure that stays within a tolerance of its value at the first point."""

    tolerance: float

    @property
    def words(self) -> str:
        """Return what is tested."""
        return f"{self.measure.name} stays within {self.tolerance:.0%} of that of the first value"

    def pairs(self, points: Sequence[Point], measured: Sequence[BySeed]) -> Iterable[tuple[str, BySeed, BySeed]]:
        """Yield every other point and the first."""
        return ((point_name(point), each, measured[0]) for point, each in zip(points[1:], measured[1:], strict=True))

    def margin(self, mine: Array, other: Array) -> float:
        """Return what is left of the tolerance."""
        return self.tolerance - float(np.abs(mine / other - 1).max())


@dataclass(frozen=True)
class Exceeds(PairTest):
    """Measure that is several times larger in one series than in another, at every value of the axis."""

    series: str
    other: str
    times: float

    @property
    def words(self) -> str:
        """Return what is tested."""
        return f"{self.measure.name} under {self.series} is at least {self.times:g} times that under {self.other}"

    def pairs(self, points: Sequence[Point], measured: Sequence[BySeed]) -> Iterable[tuple[str, BySeed, BySeed]]:
        """Yield points of both series at the same value."""
        known = list(zip(points, measured, strict=True))
        others = {point.value: each for point, each in known if point.series == self.other}
        return (
            (f"{point.value:g}", each, others.get(point.value, {}))
            for point, each in known
            if point.series == self.series
        )

    def margin(self, mine: Array, other: Array) -> float:
        """Return the excess over the claimed factor."""
        return float((mine / other).min()) - self.times


def point_name(point: Point) -> str:
    """Return the series and the value of a point."""
    return f"{point.series} {point.value:g}".strip()
