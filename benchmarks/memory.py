"""Peak memory against the number of clients, for models of 100,000 parameters: whole runs, each in its own process.

Chains that add updates up as they arrive must stay flat. Rules that compare updates keep all of them: krum with 2,000
clients, whose updates are 0.75 GiB. Every process here is told that the machine has 2 GiB, so that those of 10,000
clients, 3.7 GiB, must be refused. Anonymous memory counts, looked at every few milliseconds.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.timing import report

LIMIT = 2 * 2**30
SIZES = 100, 1000, 10_000
COMPARED = 2000
"""Clients whose updates, 0.75 GiB, are compared."""
PARAMETERS = 100_000
DECAY = {"weight_decay": 0.01}
CHAINS: dict[str, tuple[list[Any], dict[str, float]]] = {
    "fedavg": (["fedavg"], {}),
    "update-cap": (["update-cap", "fedavg"], DECAY),
    "norm-bound": ([{"type": "norm-bound", "bound": 0.1}, "fedavg"], DECAY),
    "krum": (["krum"], {}),
    "median": (["median"], {}),
}
"""Chains by name, and what local training is like: under weight decay a cap takes a part of the model off."""


def settings(chain: str, clients: int) -> dict[str, Any]:
    """Return a run with few samples for each client.

    Data are the same for all numbers of clients.
    """
    aggregation, training = CHAINS[chain]
    return {
        "rounds": 1,
        "dataset": {
            "type": "synthetic",
            "train_samples": max(SIZES),
            "test_samples": 200,
            "classes": 500,
            "features": 200,
        },
        "partition": {"type": "iid", "clients": clients},
        "model": {"type": "softmax", "bias": False},
        "training": {"learning_rate": 0.1, "steps": 2, "batch_size": 10} | training,
        "server": {"clip_norm": 15.0, "noise_std": 0.01},
        "engine": {"type": "local", "threads": 1},
        "evaluation": {"every": 0},
        "aggregation": aggregation,
    }


def memory_status(field: str) -> int:
    """Return a line of `/proc/self/status`, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


@contextmanager
def watch_peak() -> Iterator[list[int]]:
    """Watch the peak of anonymous memory, the only entry of the list."""
    peak = [0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], memory_status("RssAnon"))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield peak
    finally:
        done.set()
        watching.join()


def play(chain: str, clients: int) -> None:
    """Play one run on a machine of 2 GiB in this process; print its peaks, or the refusal."""
    from crfl_core import CrflError, resource_limits, run

    def left(root: Path = Path("/")) -> resource_limits.Headroom | None:  # noqa: ARG001
        return resource_limits.Headroom(max(0, LIMIT - memory_status("RssAnon")), "2 GiB of this benchmark")

    resource_limits.free_memory = left
    started = time.monotonic()
    try:
        with watch_peak() as peak, tempfile.TemporaryDirectory() as folder:
            run(settings(chain, clients), out=Path(folder) / "run")
    except CrflError as error:
        print(f"refused: {error}")
        return
    print(peak[0], f"{time.monotonic() - started:.0f}")


def measure_peak(chain: str, clients: int) -> float:
    """Measure the anonymous memory of a run in a process of its own, in GiB.

    It is 0 if the run was refused, which is printed.
    """
    command = [sys.executable, "-m", "benchmarks.memory", chain, str(clients)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()[-1]
    if text.startswith("refused"):
        print(f"{chain}, {clients:,} clients: {text}")
        return 0.0
    anonymous, seconds = text.split()
    print(f"{chain}, {clients:,} clients: {int(anonymous) / 2**20:,.0f} MiB, {seconds} s")
    return int(anonymous) / 2**30


def main() -> None:
    for chain in ("fedavg", "update-cap", "norm-bound"):
        few, *_, many = (measure_peak(chain, clients) for clients in SIZES)
        report(f"peak memory of 10,000 clients / of 100, {chain}", many / few, "at most 1.1")
        report(f"GiB for 10,000 clients x 100,000 parameters, {chain}", many, "at most 2")
    few, more = (measure_peak("krum", clients) for clients in (100, COMPARED))
    updates = (COMPARED - 100) * PARAMETERS * 4 / 2**30
    report(
        f"memory that {COMPARED:,} clients take more than 100 / their updates, krum",
        (more - few) / updates,
        "at most 2",
    )
    for chain in ("krum", "median"):
        report(f"runs of 10,000 clients that are refused, {chain}", float(measure_peak(chain, max(SIZES)) == 0), "1")


if __name__ == "__main__":
    play(sys.argv[1], int(sys.argv[2]))
