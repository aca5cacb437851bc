"""300 continuations as one batch against their batched products alone, and against one run: 20 clients, 784 x 10, batch
100, 30 steps.

What products take is all that can be asked for. A run spends most of its time on other things, which continuations
share: the faster a single run becomes, the more runs its continuations are worth.

And what a cap in front of the mean costs a round of some continuations: where it does not bite, one product adds up the
updates of all of them, with and without weight decay, under which a part of the model is the centre of the cap.
"""

from __future__ import annotations

import time

import torch

from benchmarks.round_runner import Rounds
from benchmarks.rounds import BATCH, CLIENTS, FEATURES, SETTINGS, Products
from benchmarks.timing import best_times, median_ratio, report
from crfl_core.extend import TrainingTask
from crfl_core.training import rounds
from crfl_core.training.local_training import LocalTraining

CONTINUATIONS = 300
TOGETHER = 40


def main() -> None:
    torch.set_num_threads(1)
    federation = Rounds(SETTINGS).federation
    training = LocalTraining(federation)
    starts = 0.1 * torch.randn(CONTINUATIONS, federation.facts.parameters, generator=torch.Generator().manual_seed(0))
    clients = federation.participation.participants(1)
    task = TrainingTask(1, starts[:, None], clients, attacked=False)
    one = TrainingTask(1, starts[:1, None], clients, attacked=False)
    times = best_times(
        {
            "one run": lambda: training.train(one, slice(0, CLIENTS)),
            "all": lambda: training.train(task, slice(0, CLIENTS)),
            "products": Products(torch.rand(CLIENTS * BATCH, FEATURES), CONTINUATIONS),
        },
        turns=1,
        clock=time.process_time,
    )
    print(", ".join(f"{name} {seconds:.3f} s" for name, seconds in times.items()))
    report("time of 300 continuations / their products alone", times["all"] / times["products"], "at most 1.2")
    report(
        "time of 300 continuations / one run of the same rounds",
        times["all"] / times["one run"],
        "below 300: one after the other",
    )
    for decay in (0.0, 0.01):
        plain, capped = (Continued(aggregation, decay) for aggregation in (["fedavg"], ["update-cap", "fedavg"]))
        ratio = median_ratio(capped, plain, turns=5, clock=time.process_time)
        report(f"round of {TOGETHER} continuations behind a cap / without, decay {decay:g}", ratio, "at most 1.1")


class Continued:
    """Round of some continuations, played whenever it is called."""

    def __init__(self, aggregation: list[str], decay: float) -> None:
        training = SETTINGS["training"] | {"weight_decay": decay}
        model = {"type": "softmax", "bias": False, "features": ["unit-ball"]}
        self.run = Rounds(SETTINGS | {"aggregation": aggregation, "training": training, "model": model})
        (begun,) = self.run.progress
        generator = torch.Generator().manual_seed(0)
        models = begun.models + 0.01 * torch.randn(TOGETHER, begun.models.shape[1], generator=generator)
        self.progress = rounds.Progress(0, models, begun.states * TOGETHER, range(1, TOGETHER + 1))

    def __call__(self) -> None:
        """Play the same round again."""
        rounds.play_round(self.run.session, (self.progress,))
