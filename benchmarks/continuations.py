"""Local training of 300 continuations as one batch against one run: 20 clients, 784 x 10, batch 100, 30 steps."""

from __future__ import annotations

import torch

from benchmarks.round_runner import Rounds
from benchmarks.rounds import CLIENTS, SETTINGS
from benchmarks.timing import best_times, report
from crfl_core.extend import Round
from crfl_core.federation.local import LocalTraining

CONTINUATIONS = 300


def main() -> None:
    federation = Rounds(SETTINGS).federation
    training = LocalTraining(federation)
    starts = 0.1 * torch.randn(CONTINUATIONS, federation.facts.parameters, generator=torch.Generator().manual_seed(0))
    clients = federation.participation.honest(1)
    current = Round(1, 1000, starts[0], clients, federation.model.layout, federation.streams)
    times = best_times(
        {
            "one run": lambda: training.train(starts[:1], current, slice(0, CLIENTS)),
            "all": lambda: training.train(starts, current, slice(0, CLIENTS)),
        },
        turns=2,
    )
    print(f"one run {times['one run']:.3f} s, {CONTINUATIONS} continuations {times['all']:.2f} s")
    report("time of 300 continuations / one run of the same rounds", times["all"] / times["one run"], "at most 60")
