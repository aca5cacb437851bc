"""An attacked round beside a clean one: 20 clients, one of which attacks, 784 x 10 softmax regression, batch 100,
30 local steps as in the benchmark of rounds.

Once on the inputs themselves and once, for the attack of the paper, behind a feature map that is expensive to compute.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.round_runner import Rounds
from benchmarks.timing import median_ratio, report

TRIGGER = {"type": "features", "norm": 1.0, "features": [0, 1, 2, 3]}
POISON: dict[str, Any] = {"poisoned_per_batch": 10}
ATTACKS: dict[str, dict[str, Any]] = {
    "model-replacement": POISON | {"trigger": TRIGGER},
    "dba": POISON | {"trigger": TRIGGER},
    "constrain-and-scale": POISON | {"trigger": TRIGGER},
    "pgd": POISON | {"trigger": TRIGGER},
    "edge-case": POISON,
    "semantic": POISON,
    "label-flip": {"source": 3, "target": 5},
    "sign-flip": {},
    "alie": {"z": 1.0},
    "inner-product-manipulation": {},
    "gaussian": {},
    "neurotoxin": POISON | {"trigger": TRIGGER},
    "min-max": {},
    "min-sum": {},
    "certificate-seeking": {"bound": 1.0},
}
FOURIER = {"type": "softmax", "features": {"type": "random-fourier", "outputs": 500}}


def make_rounds(attack: dict[str, Any] | str, model: dict[str, Any] | str = "softmax") -> Rounds:
    """Build a federation with an attack, or with "none"."""
    return Rounds(
        {
            "rounds": 1000,
            "dataset": {"type": "random-images", "samples": 20000, "tests": 1000},
            "partition": {"type": "iid", "clients": 20},
            "model": model,
            "training": {"learning_rate": 0.01, "steps": 30, "batch_size": 100},
            "attack": attack,
            "evaluation": {"every": 0},
        }
    )


def main() -> None:
    torch.set_num_threads(1)
    schedule = {"clients": [7], "rounds": {"first": 1}}
    for name, options in ATTACKS.items():
        compare(name, make_rounds("none"), make_rounds({"type": name} | schedule | options))
    fourier = make_rounds({"type": "model-replacement"} | schedule | ATTACKS["model-replacement"], FOURIER)
    compare("model-replacement, random Fourier features", make_rounds("none", FOURIER), fourier)


def compare(name: str, clean: Rounds, attacked: Rounds) -> None:
    """Compare the processor time of an attacked and a clean round."""
    ratio = median_ratio(attacked, clean, turns=7, clock=time.process_time)
    report(f"attacked / clean round: {name}", ratio, "at most 1.2")
