"""Timing on a noisy machine: candidates take turns, and each is judged by its best turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


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


def report(name: str, ratio: float, target: str) -> None:
    """One line: what was compared, the ratio, and what it should be."""
    print(f"{name:<72} {ratio:6.2f}   (target: {target})")
