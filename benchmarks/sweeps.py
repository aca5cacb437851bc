"""Five seeds, and five seeds of the noise alone, against one run: MNIST's size, 20 clients, 784 x 10, batch 100, 30 steps.

Each is a process of its own, as people start it, on as many cores as there are.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import tomli_w

from benchmarks.timing import report

CONFIG = {
    "name": "benchmark",
    "rounds": 100,
    "dataset": {"type": "synthetic", "features": 784, "train_samples": 60_000, "test_samples": 5000},
    "partition": {"type": "iid", "clients": 20},
    "model": {"type": "softmax"},
    "training": {"learning_rate": 0.001, "steps": 30, "batch_size": 100},
    "server": {"clip_norm": {"start": 2.0, "slope": 0.1}, "noise_std": 0.01},
    "votes": {"models": 1000},
    "certificates": ["paper"],
    "engine": {"threads": 1},
    "attack": {"type": "model-replacement", "clients": [1], "rounds": [10], "scale": 10.0, "poisoned_per_batch": 5},
}


def seconds(folder: Path, *arguments: str) -> float:
    """How long a command takes, from its start to its end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "crfl_core", *arguments, "-q"], cwd=folder, env=environment, check=True)
    return time.perf_counter() - started


def main() -> None:
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "config.toml").write_text(tomli_w.dumps(CONFIG))
        one = min(seconds(folder, "run", "config.toml", "--force") for _ in range(2))
        seeds = seconds(folder, "sweep", "config.toml", "--seeds", "5", "--out", "seeds")
        noise = seconds(folder, "sweep", "config.toml", "--vary", "seeds.noise=0,1,2,3,4", "--out", "noise")
    print(f"one run {one:.1f} s, five seeds {seeds:.1f} s, five noise seeds {noise:.1f} s")
    report("time of five seeds / one run", seeds / one, "at most 3.2 on 2 cores")
    report("time of five noise seeds / one run", noise / one, "at most 2 on 2 cores")
