"""A round of 20 clients that train small networks, beside the usual loop over clients and the peers.

`mlp` has 64 hidden units, batches of 100 and 30 local steps; `cnn` has 8 and 16 channels, batches of 50 and 10 steps.
The loop trains a module per client with `torch.optim.SGD`. pfl-research and ByzFL, if `make peers` has installed them,
train the same modules. Our rounds include all checks and their lines in the ledger. CPU seconds of one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peer_rounds import CLIENTS, NETWORKS, PEERS, PER_CLIENT, RATE, network_peer_times
from benchmarks.round_runner import Rounds
from benchmarks.timing import best_times, report

SHAPE = (1, 28, 28)
CLIP = 100.0
TURNS = 7


def settings(name: str, batch: int, steps: int) -> dict[str, Any]:
    """Return the config of the rounds of a network."""
    return {
        "rounds": 1000,
        "dataset": {"type": "random-images", "shape": SHAPE},
        "partition": {"type": "iid", "clients": CLIENTS},
        "model": {"type": name},
        "training": {"learning_rate": RATE, "steps": steps, "batch_size": batch},
        "server": {"clip_norm": CLIP, "noise_std": 0.0},
        "evaluation": {"every": 0},
    }


class LoopedRound:
    """A loop over clients, each with a module and an optimiser of its own; then their models are averaged."""

    def __init__(self, new_module: Callable[[], nn.Module], x: Tensor, y: Tensor, batch: int, steps: int) -> None:
        self.x = x
        self.y = y
        self.batch = batch
        self.steps = steps
        self.new_module = new_module
        self.model = new_module()

    def __call__(self) -> None:
        """Play the next round."""
        mean = {name: torch.zeros_like(value) for name, value in self.model.state_dict().items()}
        for client in range(CLIENTS):
            local = self.new_module()
            local.load_state_dict(self.model.state_dict())
            optimiser = torch.optim.SGD(local.parameters(), lr=RATE)
            order = torch.randperm(PER_CLIENT)[: self.batch * self.steps] + client * PER_CLIENT
            for rows in order.view(self.steps, self.batch):
                optimiser.zero_grad()
                nn.functional.cross_entropy(local(self.x[rows]), self.y[rows]).backward()
                optimiser.step()
            for name, value in local.state_dict().items():
                mean[name] += value / CLIENTS
        self.model.load_state_dict(mean)


def main() -> None:
    torch.set_num_threads(1)
    peers = network_peer_times()
    for name, (new_module, batch, steps) in NETWORKS.items():
        ours = Rounds(settings(name, batch, steps))
        data = ours.federation.data
        x = data.x[:].float()
        looped = LoopedRound(new_module, x, data.y, batch, steps)
        times = best_times({"ours": ours, "looped": looped}, turns=TURNS, clock=time.process_time)
        print("CPU seconds, one thread: " + "  ".join(f"{one} {seconds:.3f}" for one, seconds in times.items()))
        report(f"time of a round of {name} / a loop over clients", times["ours"] / times["looped"], "at most 1")
        for peer in PEERS:
            if (seconds := peers.get(f"{peer} {name}")) is not None:
                report(f"time of a round of {name} in {peer} / ours", seconds / times["ours"], "at least 1")
    if not peers:
        print("no peer is installed: `make peers` adds them")
