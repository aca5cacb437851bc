"""A round of 20 clients, 784 x 10 softmax regression, batch 100, 30 local steps, reshuffled every round.

Compared with its batched products alone, with a bare batched loop of the same arithmetic, written by hand, with the
usual loop over clients, and with pfl-research and ByzFL if `make peers` has installed them. Our rounds include all
checks and their lines in the ledger. All data are in memory, ours as bytes, and CPU seconds of one thread count: they
depend less on what else the machine does.

Then a round of 10,000 clients with 6 samples each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peer_rounds import PEERS, peer_times
from benchmarks.round_runner import Rounds
from benchmarks.timing import Seconds, best_times, report

CLIENTS = 20
BATCH = 100
STEPS = 30
RATE = 0.01
CLASSES = 10
FEATURES = 784
PER_CLIENT = 3000
CLIP = 15.0
NOISE = 0.01
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
MANY = {
    "partition": {"type": "iid", "clients": 10_000},
    "model": {"type": "softmax"},
    "training": {"learning_rate": RATE, "steps": 1, "batch_size": 6},
}
"""What another federation has: 10,000 clients x 7,850 parameters."""


class Products:
    """The two batched products of every step, for one model or several replicas, on one batch.

    Logits lie as usual, (batch, classes).
    """

    def __init__(self, x: Tensor, replicas: int = 1) -> None:
        self.x = x[: CLIENTS * BATCH].view(CLIENTS, BATCH, FEATURES)
        outputs = replicas * CLASSES
        self.weights = torch.zeros(CLIENTS, outputs, FEATURES)
        self.residual = torch.zeros(CLIENTS, BATCH, outputs)

    def __call__(self) -> None:
        """Compute the products of one round."""
        for _ in range(STEPS):
            torch.bmm(self.x, self.weights.transpose(1, 2))
            self.weights.baddbmm_(self.residual.transpose(1, 2), self.x, alpha=-1)


class TransposedProducts(Products):
    """The same products with logits as (classes, batch), as the framework has them.

    That product takes half the time.
    """

    def __call__(self) -> None:
        """Compute the products of one round."""
        turned = self.x.transpose(1, 2)
        residual = self.residual.view(CLIENTS, -1, BATCH)
        for _ in range(STEPS):
            torch.bmm(self.weights, turned)
            self.weights.baddbmm_(residual, self.x, alpha=-1)


class BareBatchedRound:
    """The same arithmetic without a framework."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x = x
        self.y = y
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


class LoopedRound:
    """A loop over clients, each with its own module, loss and optimiser."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x = x
        self.y = y
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


def time_candidates(candidates: dict[str, Callable[[], None]], turns: int) -> dict[str, Seconds]:
    """Measure and print the CPU seconds of each candidate."""
    times = best_times(candidates, turns=turns, clock=time.process_time)
    print("CPU seconds, one thread: " + "  ".join(f"{name} {seconds:.3f}" for name, seconds in times.items()))
    return times


def main() -> None:
    torch.set_num_threads(1)
    ours = Rounds(SETTINGS)
    data = ours.federation.data
    x = data.x
    candidates: dict[str, Callable[[], None]] = {
        "ours": ours,
        "products": Products(x),
        "turned products": TransposedProducts(x),
        "bare": BareBatchedRound(x, data.y),
        "looped": LoopedRound(x, data.y),
    }
    times = time_candidates(candidates, turns=15)
    report("time of a round / its batched products alone", times["ours"] / times["products"], "at most 1.5")
    report("time of a round / these products with logits turned", times["ours"] / times["turned products"], "the less")
    report("time of a round / bare batched loop", times["ours"] / times["bare"], "at most 1.1")
    report("time of a loop over clients / a round", times["looped"] / times["ours"], "at least 1.8")
    peers = peer_times()
    for peer, target in zip(PEERS, (3, 6), strict=True):
        if peer in peers:
            report(f"time of a round of {peer} / ours", peers[peer] / times["ours"], f"at least {target}")
        else:
            print(f"{peer} is not installed: `make peers` adds it")
    times = time_candidates({"10,000 clients": Rounds(SETTINGS | MANY), "products": candidates["products"]}, turns=5)
    report("a round of 10,000 clients / the products above", times["10,000 clients"] / times["products"], "at most 5")
