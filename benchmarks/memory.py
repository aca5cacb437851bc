"""Peak memory against the number of clients, for models of 100,000 parameters: whole runs, each in its own process.

Chains that add updates up as they arrive must stay flat. Krum compares all pairs: the products of 10,000 clients are
0.75 GiB, and their updates, 3.7 GiB, go into a file, because every process here is told that the machine has 2 GiB. Of
such a file the kernel keeps in memory what no other process needs, so anonymous memory counts, looked at every few
milliseconds. `python -m benchmarks memory` plays krum with 2,000 clients; with 10,000 it multiplies 10^13 numbers, ten
minutes and more on one core: `python -m benchmarks.memory krum 10000`.
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
IN_A_FILE = 2000
"""Clients of krum whose updates, 0.75 GiB, are more than a quarter of what such a machine has left."""
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
    print(peak[0], memory_status("VmHWM"), f"{time.monotonic() - started:.0f}")


def measure_peak(chain: str, clients: int) -> float:
    """Measure the anonymous memory of a run in a process of its own, in GiB.

    It is 0 if the run was refused, which is printed.
    """
    command = [sys.executable, "-m", "benchmarks.memory", chain, str(clients)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()[-1]
    if text.startswith("refused"):
        print(f"{chain}, {clients:,} clients: {text}")
        return 0.0
    anonymous, highest, seconds = text.split()
    print(
        f"{chain}, {clients:,} clients: {int(anonymous) / 2**20:,.0f} MiB, with mapped files "
        f"{int(highest) / 2**20:,.0f} MiB, {seconds} s"
    )
    return int(anonymous) / 2**30


def main() -> None:
    for chain in ("fedavg", "update-cap", "norm-bound"):
        few, *_, many = (measure_peak(chain, clients) for clients in SIZES)
        report(f"peak memory of 10,000 clients / of 100, {chain}", many / few, "at most 1.1")
        report(f"GiB for 10,000 clients x 100,000 parameters, {chain}", many, "at most 2")
    few, more = (measure_peak("krum", clients) for clients in (100, IN_A_FILE))
    report(f"peak memory of {IN_A_FILE:,} clients / of 100, krum", more / few, "at most 1.2")
    measure_peak("median", max(SIZES))


if __name__ == "__main__":
    play(sys.argv[1], int(sys.argv[2]))
