"""Local training of 300 continuations as one batch against one run: 20 clients, 784 x 10, batch 100, 30 steps."""

from __future__ import annotations

import torch

from benchmarks.round_runner import Rounds
from benchmarks.rounds import CLIENTS, SETTINGS
from benchmarks.timing import best_times, report
from crfl_core.extend import TrainingTask
from crfl_core.federation.local import LocalTraining

CONTINUATIONS = 300


def main() -> None:
    federation = Rounds(SETTINGS).federation
    training = LocalTraining(federation)
    starts = 0.1 * torch.randn(CONTINUATIONS, federation.facts.parameters, generator=torch.Generator().manual_seed(0))
    clients = federation.participation.round(1)
    task = TrainingTask(1, starts[:, None], clients, attacked=False)
    one = TrainingTask(1, starts[:1, None], clients, attacked=False)
    times = best_times(
        {
            "one run": lambda: training.train(one, slice(0, CLIENTS)),
            "all": lambda: training.train(task, slice(0, CLIENTS)),
        },
        turns=2,
    )
    print(f"one run {times['one run']:.3f} s, {CONTINUATIONS} continuations {times['all']:.2f} s")
    report("time of 300 continuations / one run of the same rounds", times["all"] / times["one run"], "at most 60")
