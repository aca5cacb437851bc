"""The engine `ray` with workers on this machine against `local` with one thread: what a round costs more, and gains.

Workers are resident: they are hired before anything is timed. On a busy machine the wall says little, so the seconds of
all processors are shown, too; what two idle cores would gain follows from those, if the busier worker sets the pace.
The memory of a driver is looked at in a process of its own: a round of 100 and of 10,000 clients with 100,000
parameters, whose updates are 4 GB.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from crfl_engines.ray.cluster import import_ray

from benchmarks import memory
from benchmarks.timing import report
from crfl_core import load_config
from crfl_core.training import rounds
from crfl_core.training.federation import build
from crfl_core.training.ledger_rows import record_round
from crfl_core.training.session import Session

SMALL = {
    "rounds": 1000,
    "dataset": {"type": "synthetic", "features": 784, "train_samples": 6000, "test_samples": 100},
    "partition": {"type": "iid", "clients": 20},
    "training": {"learning_rate": 0.01, "steps": 2, "batch_size": 20},
    "server": {"clip_norm": 15.0, "noise_std": 0.01},
    "evaluation": {"every": 0},
    "certificates": ["paper"],
}
"""Rounds that hardly train: 7,850 parameters, 20 clients."""
IMAGES = SMALL | {
    "dataset": {"type": "digits"},
    "model": {"type": "cnn", "channels": [16, 32]},
    "training": {"learning_rate": 0.01, "steps": 20, "batch_size": 32},
    "partition": {"type": "iid", "clients": 24},
}
"""A federation of convolutional networks, in six parts."""
TICKS = os.sysconf("SC_CLK_TCK")


class RoundCost(NamedTuple):
    """Seconds of rounds on the wall, and of the processors in this process and in each worker."""

    wall: float
    driver: float
    workers: list[float]


class Federation:
    """Federation whose engine is open and warm; it plays its next round when it is called."""

    def __init__(self, settings: dict[str, Any], engine: dict[str, Any]) -> None:
        federation = build(load_config(settings | {"engine": engine}).config)
        self.session = Session.of(federation, Path())
        self.progress = rounds.initial_progress(federation)

    def __call__(self) -> None:
        """Play the next round."""
        outcomes = rounds.play_round(self.session, self.progress)
        for outcome in outcomes:
            record_round(self.session.federation, outcome)
        self.progress = tuple(outcome.after for outcome in outcomes)

    @property
    def workers(self) -> list[int]:
        """Return the processes that train, if there are any besides this one."""
        pool = getattr(self.session.engine, "_pool", None)
        return [] if pool is None else [int(worker.place.rpartition(" ")[2]) for worker in pool._workers]


@contextmanager
def open_federation(settings: dict[str, Any], **engine: Any) -> Iterator[Federation]:
    """Open a federation, and play two rounds."""
    federation = Federation(settings, engine)
    with federation.session.open_engine():
        federation()
        federation()
        yield federation


def processor_seconds(process: int) -> float:
    """Return the processor seconds that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure_rounds(federation: Federation, count: int) -> RoundCost:
    """Measure the cost of some rounds."""
    workers = federation.workers
    before = [processor_seconds(one) for one in workers]
    wall = time.perf_counter()
    own = time.process_time()
    for _ in range(count):
        federation()
    taken = time.perf_counter() - wall, time.process_time() - own
    after = [processor_seconds(one) for one in workers]
    return RoundCost(*taken, [late - early for late, early in zip(after, before, strict=True)])


def seconds(play: Callable[[], None], count: int) -> list[float]:
    """Measure the wall time of each of some rounds."""
    found = []
    for _ in range(count):
        started = time.perf_counter()
        play()
        found.append(time.perf_counter() - started)
    return found


def measure_overhead(parts: int) -> None:
    """Measure what Ray adds to a round of this number of parts, with one worker."""
    cut = {"chunk_clients": 20 // parts}
    with (
        open_federation(SMALL, type="local", threads=1, **cut) as local,
        open_federation(SMALL, type="ray", address="local", workers=1, **cut) as apart,
    ):
        here = []
        there = []
        for _ in range(20):  # in turns: whatever else the machine does comes to both
            here += seconds(local, 5)
            there += seconds(apart, 5)
    print(f"a round of {parts} parts: local {1e3 * median(here):.1f} ms, ray {1e3 * median(there):.1f} ms (medians)")
    added = 1e3 * (median(there) - median(here))
    report(f"milliseconds that ray adds to a round of {parts} parts, median of 100", added, "below 15")
    added = 1e3 * (min(there) - min(here))
    report(f"milliseconds that ray adds to a round of {parts} parts, best of 100", added, "below 15")


def measure_speed_up() -> None:
    """Measure how much faster two workers train networks than one process with one thread."""
    ray = {"type": "ray", "address": "local", "workers": 2, "chunk_clients": 4}
    with (
        open_federation(IMAGES, type="local", threads=1, chunk_clients=4) as local,
        open_federation(IMAGES, **ray) as apart,
    ):
        one = measure_rounds(local, 5)
        two = measure_rounds(apart, 5)
    workers = ", ".join(f"{each:.2f} s" for each in two.workers)
    print(f"five rounds of 24 networks: local {one.wall:.2f} s on the wall, {one.driver:.2f} s of a processor")
    print(f"ray {two.wall:.2f} s on the wall; processors: driver {two.driver:.2f} s, workers {workers}")
    report("speed-up on the wall, two workers", one.wall / two.wall, "at least 1.7 on 2 idle cores")
    pace = max(*two.workers, (two.driver + sum(two.workers)) / 2)
    report("speed-up by seconds of processors, if two cores were idle", one.driver / pace, "at least 1.7")


def play(clients: int) -> None:
    """Play one round of many clients in this process; print its peak and its seconds."""
    ray = {"type": "ray", "address": "local", "workers": 2, "chunk_clients": 64}
    settings = memory.settings("fedavg", clients)
    federation = Federation(settings | {"rounds": 3}, ray)
    with federation.session.open_engine():
        federation()  # which hires the workers
        with memory.watch_peak() as peak:
            took = measure_rounds(federation, 1)
    print(peak[0], took.wall, took.driver, sum(took.workers))


def measure_memory() -> None:
    """Measure the driver's memory, and its processor time per GB of updates."""
    peaks = {}
    for clients in (100, 10_000):
        command = [sys.executable, "-m", "benchmarks.ray", str(clients)]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        peak, wall, driver, workers = map(float, found)
        gigabytes = clients * 400_000 / 1e9
        print(
            f"{clients:,} clients: driver {peak / 2**20:,.0f} MiB; {gigabytes:.2f} GB of updates in {wall:.1f} s, "
            f"processors: driver {driver:.2f} s, workers {workers:.2f} s"
        )
        peaks[clients] = peak
    report("the driver's memory for 10,000 clients / for 100", peaks[10_000] / peaks[100], "at most 1.1")
    report("GB of updates that the driver takes in per second of its processor", gigabytes / driver, "the more")


def loopback_bytes() -> int:
    """Return the bytes that processes of this machine have sent to each other."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.partition(":")[2].split()[8])


def measure_network(clients: int = 2000) -> None:
    """Measure what a round sends between two nodes on this machine.

    One of them is the driver's, so half of all updates travel.
    """
    import_ray()
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 400 * 2**20}
    cluster: Any = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    try:
        cluster.add_node(**node)
        ray = {"type": "ray", "address": cluster.address, "workers": 2, "chunk_clients": 64}
        with open_federation(memory.settings("fedavg", clients) | {"rounds": 5}, **ray) as federation:
            before = loopback_bytes()
            fetched = measure_rounds(federation, 1)
            sent = loopback_bytes() - before
    finally:
        cluster.shutdown()
    gigabytes = clients * 400_000 / 1e9
    print(
        f"two nodes, {clients:,} clients: {gigabytes:.2f} GB of updates, {sent / 1e9:.2f} GB between nodes, "
        f"{fetched.wall:.2f} s, processors: driver {fetched.driver:.2f} s, workers {sum(fetched.workers):.2f} s"
    )
    report("bytes between nodes / half of all updates", sent / 1e9 / (gigabytes / 2), "1, if parts are shared evenly")


def main() -> None:
    measure_overhead(parts=1)
    measure_overhead(parts=4)
    measure_speed_up()
    measure_memory()
    measure_network()


if __name__ == "__main__":
    play(int(sys.argv[1]))
