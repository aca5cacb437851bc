"""What checking plugins costs: the part of a round in which reported weights and untouched inputs are verified.

Rounds are those of the benchmark of rounds. Plain means cost nothing: there the core computes the aggregate itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.round_runner import Rounds
from benchmarks.rounds import SETTINGS
from benchmarks.timing import report
from crfl_core.plugin_loading import mutation_guard
from crfl_core.training import aggregator_contract as answers

RULES: dict[str, Any] = {
    "fedavg": "fedavg",
    "krum": {"type": "krum", "f": 2},
    "rfa": "rfa",
    "median": "median",
    "trimmed-mean": {"type": "trimmed-mean", "trim": 2},
}
ROUNDS = 8


class Clock:
    """Clock that adds up the processor time of functions, nested calls only once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed."""

        def call(*arguments: Any) -> Any:
            self._depth += 1
            started = time.process_time()
            try:
                return function(*arguments)
            finally:
                self._depth -= 1
                self.seconds += (time.process_time() - started) * (self._depth == 0)

        return call


def main() -> None:
    torch.set_num_threads(1)
    clock = Clock()
    for module, name in (
        (answers, "check_weights"),
        (answers, "check_identity"),
        (mutation_guard, "fingerprint"),
        (mutation_guard, "equal_arrays"),
    ):
        setattr(module, name, clock.wrap(getattr(module, name)))
    for name, rule in RULES.items():
        play = Rounds(SETTINGS | {"aggregation": [rule]})
        play()
        clock.seconds = 0.0
        started = time.process_time()
        for _ in range(ROUNDS):
            play()
        share = clock.seconds / (time.process_time() - started)
        report(f"checks, percent of a round behind {name}", 100.0 * share, "below 3")
