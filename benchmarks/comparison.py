"""Comparison of two files of results: ratios that changed by more than their noise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.results import Result, Results

MIN_NOISE = 0.05
"""The part of a ratio that is noise at least: some are measured once, and know of no spread."""


class Change(NamedTuple):
    """The same ratio in two files."""

    benchmark: str
    old: Result
    new: Result

    @property
    def is_slower(self) -> bool:
        """Check whether all of the new spread lies on the worse side of the old."""
        return exceeds_noise(self.old, self.new, self.new.direction)

    @property
    def is_faster(self) -> bool:
        """Check whether all of the new spread lies on the better side of the old."""
        return exceeds_noise(self.old, self.new, -self.new.direction)

    def __str__(self) -> str:
        change = f"{format_ratio(self.old)} -> {format_ratio(self.new)}"
        return f"{self.benchmark}: {self.new.name}: {change} ({self.new.target})"


def exceeds_noise(old: Result, new: Result, direction: int) -> bool:
    """Check whether a ratio fell (direction 1) or rose (-1) by more than its noise."""
    if direction == 0:
        return False
    noise = MIN_NOISE * abs(old.ratio)
    if direction > 0:
        return new.high < min(old.low, old.ratio - noise)
    return new.low > max(old.high, old.ratio + noise)


def format_ratio(result: Result) -> str:
    """Format a ratio and its spread, if any."""
    return f"{result.ratio:.3g}" + (f" [{result.low:.3g}, {result.high:.3g}]" if result.low < result.high else "")


def changes(old: Results, new: Results) -> Iterator[Change]:
    """Yield every ratio that both files have."""
    for benchmark, found in new.benchmarks.items():
        before = {result.name: result for result in old.benchmarks.get(benchmark, ())}
        for result in found:
            if result.name in before:
                yield Change(benchmark, before[result.name], result)


def compare(old: Results, new: Results) -> tuple[list[str], bool]:
    """Return the report, line by line, and whether any ratio got slower."""
    both = list(changes(old, new))
    slower = [one for one in both if one.is_slower]
    faster = [one for one in both if one.is_faster]
    lines = []
    if old.machine != new.machine:
        lines.append("the machines differ: only ratios can be compared, and those with care")
    differing = sorted(
        name for name in {*old.versions, *new.versions} if old.versions.get(name) != new.versions.get(name)
    )
    lines += [f"{name}: {old.versions.get(name, 'none')} -> {new.versions.get(name, 'none')}" for name in differing]
    lines += [f"slower: {one}" for one in slower] + [f"faster: {one}" for one in faster]
    rest = len(both) - len(slower) - len(faster)
    lines.append(f"{len(slower)} slower, {len(faster)} faster, {rest} within their noise, of {len(both)} in both")
    return lines, bool(slower)
