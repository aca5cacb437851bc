"""What the batch-spectrum rule costs: a round of 20 clients, 300 features, with mini-batches and with all samples.

Mini-batches of 100 need a Gram matrix and its eigenvalues each. A client that trains on all its samples in every step
is measured once in a run, so there rounds must cost as much as without the rule.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.round_runner import Rounds
from benchmarks.timing import best_times, report

CLIENTS = 20
FEATURES = 300


def settings(batch_size: int, steps: int, spectrum: float | None) -> dict[str, Any]:
    """Return a run with or without the rule."""
    training: dict[str, Any] = {"learning_rate": 1.0, "steps": steps, "batch_size": batch_size, "weight_decay": 0.01}
    return {
        "rounds": 1000,
        "dataset": {"type": "random-images", "features": FEATURES},
        "partition": {"type": "iid", "clients": CLIENTS},
        "model": {"type": "softmax", "bias": False, "features": ["unit-sphere"]},
        "training": training | ({} if spectrum is None else {"spectrum": spectrum}),
        "evaluation": {"every": 0},
    }


def main() -> None:
    torch.set_num_threads(1)
    for name, batch_size, steps, required in (
        (f"batches of 100, {FEATURES} features", 100, 30, "at most 12"),
        ("all samples in every step", 10**6, 2, "at most 1.15"),
    ):
        rounds = {str(limit): Rounds(settings(batch_size, steps, limit)) for limit in (None, 0.5)}
        times = best_times(rounds)
        print(f"seconds per round, {name}: without {times['None']:.3f}  with {times['0.5']:.3f}")
        report(f"{name}: time of a round / without the rule", times["0.5"] / times["None"], required)
