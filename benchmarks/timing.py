"""Timing on a noisy machine: candidates take turns, and are judged by their best turn, or by the median of all.

What a benchmark reports is one line on the screen and one `Result`, which carries its spread as far as it is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles

from benchmarks.results import Result

RESULTS: list[Result] = []
"""What was reported so far, in order."""
MIN_TURNS_FOR_QUARTILES = 4
"""Fewer turns than these have no quartiles: their spread goes from the least to the largest."""


class Ratio(float):
    """Ratio that carries the ratios of all turns, from which its spread comes."""

    turns: tuple[float, ...]

    @classmethod
    def of(cls, value: float, turns: Sequence[float]) -> Ratio:
        """Build a ratio from its value and those of the turns."""
        ratio = cls(value)
        ratio.turns = tuple(turns)
        return ratio

    @property
    def spread(self) -> tuple[float, float]:
        """Return where the middle half of the turns lies, the reported value included."""
        low = min(self.turns)
        high = max(self.turns)
        if len(self.turns) >= MIN_TURNS_FOR_QUARTILES:
            low, _, high = quantiles(self.turns, n=4, method="inclusive")
        return min(low, self), max(high, self)


class Seconds(float):
    """Shortest of some turns, which carries all of them: divided by another it is a `Ratio`."""

    turns: tuple[float, ...]

    @classmethod
    def of(cls, turns: Sequence[float]) -> Seconds:
        """Build the best time from all turns."""
        best = cls(min(turns))
        best.turns = tuple(turns)
        return best

    def __truediv__(self, other: float) -> float:
        """Best by best; turn by turn for the spread."""
        if not isinstance(other, Seconds):
            return float(self) / other
        each = [mine / its for mine, its in zip(self.turns, other.turns, strict=True)]
        return Ratio.of(float(self) / float(other), each)


def best_times(
    candidates: Mapping[str, Callable[[], object]], *, turns: int = 7, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Seconds]:
    """Measure the shortest time of each candidate in seconds, after a turn to warm up."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(turns + 1):
        for name, candidate in candidates.items():
            started = clock()
            candidate()
            taken[name].append(clock() - started)
    return {name: Seconds.of(seconds[1:]) for name, seconds in taken.items()}


def median_ratio(
    candidate: Callable[[], object], reference: Callable[[], object], *, turns: int, clock: Callable[[], float]
) -> Ratio:
    """Measure the median ratio of a candidate's time to the reference's in the same turn.

    For two that take nearly the same time: of each alone, the best turn is a matter of luck.
    """
    ratios = []
    for _ in range(turns + 1):
        started = clock()
        reference()
        between = clock()
        candidate()
        ratios.append((clock() - between) / (between - started))
    return Ratio.of(median(ratios[1:]), ratios[1:])


def report(name: str, ratio: float, target: str, *, detail: str = "") -> None:
    """Print and store a result: what was compared, the ratio, and its target.

    `name` is the same in every run, since results are compared by it; what differs belongs into `detail`. Targets that
    begin with "at most", "below" or "at least" say which way is better.
    """
    low, high = ratio.spread if isinstance(ratio, Ratio) else (ratio, ratio)
    RESULTS.append(Result(name, float(ratio), float(low), float(high), target))
    shown = f"{name} ({detail})" if detail else name
    between = f"  {low:.2f} to {high:.2f}" if low < high else ""
    print(f"{shown:<72} {ratio:6.2f}{between}   (target: {target})", flush=True)
