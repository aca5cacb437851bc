"""Timing on a noisy machine: candidates take turns, and are judged by their best turn, or by the median of all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median


def best_times(
    candidates: Mapping[str, Callable[[], object]], *, turns: int = 7, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The shortest time of each candidate in seconds, by the wall if no other clock is given, after one to warm up."""
    best = dict.fromkeys(candidates, float("inf"))
    for turn in range(turns + 1):
        for name, candidate in candidates.items():
            started = clock()
            candidate()
            elapsed = clock() - started
            if turn:
                best[name] = min(best[name], elapsed)
    return best


def median_ratio(
    candidate: Callable[[], object], reference: Callable[[], object], *, turns: int, clock: Callable[[], float]
) -> float:
    """The median over all turns of a candidate's time, divided by that of the reference in the same turn.

    For two that take nearly the same time: of each alone, the best turn is a matter of luck.
    """
    ratios = []
    for _ in range(turns + 1):
        started = clock()
        reference()
        between = clock()
        candidate()
        ratios.append((clock() - between) / (between - started))
    return median(ratios[1:])


def report(name: str, ratio: float, target: str) -> None:
    """One line: what was compared, the ratio, and what it should be."""
    print(f"{name:<72} {ratio:6.2f}   (target: {target})")
