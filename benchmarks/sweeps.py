"""Five seeds, and five seeds of the noise alone, against one run of MNIST's size: 20 clients, 784 x 10, batch 100.

Seeds of the noise train as one stack of models.

Each is a command of its own, as people type it, on as many cores as there are, and the best of three turns counts. On a
busy machine the time on the wall says little; half of that of all processors together is what two idle cores would need
if they shared it evenly.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

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
    "engine": {"type": "local", "threads": 1},
    "attack": {
        "type": "model-replacement",
        "clients": [1],
        "rounds": [10],
        "scale": 10.0,
        "poisoned_per_batch": 5,
        "trigger": {"type": "features", "features": [669, 696, 723, 725], "norm": 0.1},
    },
}
NOISE = ("--vary", "seeds.noise=0,1,2,3,4", "--together")
TURNS = 3


class CommandTime(NamedTuple):
    """Seconds on the wall, and the processor seconds of all processes."""

    wall: float
    processors: float


def time_command(folder: Path, *arguments: str) -> CommandTime:
    """Measure how long a command takes, from its start to its end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    before = os.times()
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "crfl_core", *arguments, "-q"], cwd=folder, env=environment, check=True)
    used = sum(after - earlier for after, earlier in zip(os.times()[2:4], before[2:4], strict=True))
    return CommandTime(time.perf_counter() - started, used)


def main() -> None:
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "config.toml").write_text(tomli_w.dumps(CONFIG))
        turns = [
            (
                time_command(folder, "run", "config.toml", "--force"),
                time_command(folder, "sweep", "config.toml", "--seeds", "5", "--out", f"seeds-{turn}"),
                time_command(folder, "sweep", "config.toml", *NOISE, "--out", f"noise-{turn}"),
            )
            for turn in range(TURNS)
        ]
    one, seeds, noise = map(min, zip(*turns, strict=True))
    for name, took in (("one run", one), ("five seeds", seeds), ("five noise seeds", noise)):
        print(f"{name:<16} {took.wall:6.1f} s on the wall, {took.processors:6.1f} s of processors")
    report("time of five seeds / one run", seeds.wall / one.wall, "at most 3.2 on 2 cores")
    report("time of five noise seeds / one run", noise.wall / one.wall, "at most 2 on 2 cores")
    report("processors of five seeds / twice those of one run", seeds.processors / one.processors / 2, "at most 3.2")
