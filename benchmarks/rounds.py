"""A round of 20 clients, 784 x 10 softmax regression, batch 100, 30 local steps, reshuffled every round.

Compared with a bare batched loop of the same arithmetic, written by hand, and with the usual loop over clients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.round_runner import Rounds
from benchmarks.timing import best_times, report

CLIENTS, BATCH, STEPS, RATE = 20, 100, 30, 0.01
CLASSES, FEATURES, PER_CLIENT = 10, 784, 3000
CLIP, NOISE = 15.0, 0.01
SETTINGS: dict[str, Any] = {
    "rounds": 1000,
    "dataset": {"type": "random-images"},
    "partition": {"type": "iid", "clients": CLIENTS},
    "model": {"type": "softmax", "bias": False},
    "training": {"learning_rate": RATE, "steps": STEPS, "batch_size": BATCH},
    "server": {"clip_norm": CLIP, "noise_std": NOISE},
    "evaluation": {"every": 0},
}
"""The benchmark as a config."""


class Bare:
    """The same arithmetic without a framework around it."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self.model = torch.zeros(CLASSES, FEATURES)

    def __call__(self) -> None:
        """Play the next round."""
        orders = [torch.randperm(PER_CLIENT) + client * PER_CLIENT for client in range(CLIENTS)]
        rows = torch.stack(orders).view(CLIENTS, STEPS, BATCH)
        weights = self.model.repeat(CLIENTS, 1, 1)
        for step in range(STEPS):
            batch = rows[:, step].reshape(-1)
            x = self.x[batch].view(CLIENTS, BATCH, FEATURES)
            residual = torch.bmm(x, weights.transpose(1, 2)).softmax(-1)
            residual.scatter_add_(2, self.y[batch].view(CLIENTS, BATCH, 1), torch.full((CLIENTS, BATCH, 1), -1.0))
            weights -= (RATE / BATCH) * torch.bmm(residual.transpose(1, 2), x)
        model = weights.mean(0)
        model /= max(1.0, float(model.norm()) / CLIP)
        self.model = model + NOISE * torch.randn_like(model)


class Looped:
    """A loop over clients, each with its own module, loss and optimiser."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self.model = nn.Linear(FEATURES, CLASSES, bias=False)

    def __call__(self) -> None:
        """Play the next round."""
        total = torch.zeros_like(self.model.weight)
        for client in range(CLIENTS):
            local = nn.Linear(FEATURES, CLASSES, bias=False)
            local.load_state_dict(self.model.state_dict())
            optimiser = torch.optim.SGD(local.parameters(), lr=RATE)
            order = torch.randperm(PER_CLIENT) + client * PER_CLIENT
            for batch in order.view(STEPS, BATCH):
                optimiser.zero_grad()
                nn.functional.cross_entropy(local(self.x[batch]), self.y[batch]).backward()
                optimiser.step()
            total += local.weight.detach() / CLIENTS
        with torch.no_grad():
            total /= max(1.0, float(total.norm()) / CLIP)
            self.model.weight.copy_(total + NOISE * torch.randn_like(total))


def main() -> None:
    ours = Rounds(SETTINGS)
    data = ours.federation.data
    for threads in (1, torch.get_num_threads()):
        torch.set_num_threads(threads)
        times = best_times({"ours": ours, "bare": Bare(data.x, data.y), "looped": Looped(data.x, data.y)})
        print(f"seconds per round, {threads} threads: " + "  ".join(f"{k} {v:.3f}" for k, v in times.items()))
        report("time of a round / bare batched loop", times["ours"] / times["bare"], "at most 1.3")
        report("time of a loop over clients / a round", times["looped"] / times["ours"], "at least 1.8")
