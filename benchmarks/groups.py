"""Rounds of 20 clients in several groups, each of which trains a model of its own, beside the same clients in one.

The same arithmetic in all: 784 x 10 softmax regression, batch 100, 30 local steps as in the benchmark of rounds.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.round_runner import Rounds
from benchmarks.rounds import CLIENTS, SETTINGS
from benchmarks.timing import median_ratio, report


def make_rounds(**changes: Any) -> Rounds:
    """Build a federation without noise, which every group would draw for itself."""
    return Rounds(SETTINGS | {"server": {"noise_std": 0.0}} | changes)


def main() -> None:
    torch.set_num_threads(1)
    for groups in (2, 5, CLIENTS):
        alone = make_rounds()
        grouped = make_rounds(groups={"count": groups})
        ratio = median_ratio(grouped, alone, turns=9, clock=time.process_time)
        report(f"round of {CLIENTS} clients in {groups} groups / in one", ratio, "at most 1.5")
