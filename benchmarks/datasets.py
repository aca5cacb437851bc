"""Loading images from the cache, and the memory that the largest set of the paper takes.

Files are generated: MNIST's sizes for the time, those of EMNIST's split bymerge (about 700,000 images) for the memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from crfl_datasets.emnist import split_names
from crfl_datasets.images import MNIST, Names
from crfl_datasets.mnist import Mnist

from benchmarks.timing import best_times, report

ROWS_AT_ONCE = 10000

TRAIN = """
import resource, sys, time
import crfl_core
settings = {
    "rounds": 2,
    "dataset": {"type": "emnist", "path": sys.argv[1]},
    "partition": {"type": "iid", "clients": 50},
    "model": {"type": "softmax", "features": {"type": "unit-ball"}},
    "training": {"learning_rate": 0.1, "steps": 20, "batch_size": 200},
    "certificates": [],
}
started = time.perf_counter()
crfl_core.run(settings, out=sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, time.perf_counter() - started)
"""


def write(folder: Path, names: Names, train: int, tests: int, classes: int) -> None:
    """Four unpacked files of random strokes: three pixels in four are black."""
    generator = np.random.default_rng(0)
    some = generator.integers(0, 256, (ROWS_AT_ONCE, 28, 28), dtype=np.uint8)
    some[generator.random(some.shape) < 0.75] = 0
    folder.mkdir()
    for count, images, labels in (
        (train, names.train_images, names.train_labels),
        (tests, names.test_images, names.test_labels),
    ):
        with (folder / images.removesuffix(".gz")).open("wb") as file:
            file.write(bytes([0, 0, 8, 3]) + np.array([count, 28, 28], ">u4").tobytes())
            for first in range(0, count, ROWS_AT_ONCE):
                file.write(some[: count - first].tobytes())
        with (folder / labels.removesuffix(".gz")).open("wb") as file:
            file.write(bytes([0, 0, 8, 1]) + np.array([count], ">u4").tobytes())
            file.write(generator.integers(0, classes, count).astype(np.uint8).tobytes())


def loading(folder: Path) -> None:
    """MNIST from the cache, against NumPy reading the same numbers as they will be used."""
    write(folder / "mnist", MNIST, 60000, 10000, 10)
    dataset = Mnist(path=folder / "mnist")
    started = time.process_time()
    data = dataset.load()
    first = time.process_time() - started
    for name, array in (("x", data.x), ("test_x", data.test_x)):
        np.save(folder / f"{name}.npy", array)
    times = best_times(
        {
            "ours": dataset.load,
            "numpy": lambda: [np.load(folder / f"{name}.npy") for name in ("x", "test_x")],
        },
        clock=time.process_time,  # one thread, and no waiting but for the processor
    )
    print(f"seconds to load MNIST: first {first:.2f}  cached {times['ours']:.3f}  np.load {times['numpy']:.3f}")
    report("seconds to load MNIST from the cache", times["ours"], "below 0.2")
    report("time to load bytes and scale them / np.load of float32", times["ours"] / times["numpy"], "at most 4")


def memory(folder: Path) -> None:
    """The peak of a whole run on EMNIST, in a process of its own."""
    write(folder / "emnist", split_names("bymerge"), 697932, 116323, 47)
    arguments = [sys.executable, "-c", TRAIN, str(folder / "emnist"), str(folder / "run")]
    for cached in (False, True):
        done = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True)
        peak, seconds = map(float, done.stdout.split()[-2:])
        print(f"EMNIST bymerge, 50 clients, 2 rounds, {'cached' if cached else 'first time'}: {seconds:.1f} s")
        report("GiB at the peak of a run on EMNIST bymerge", peak, "below 6")
        arguments[-1] += "-again"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.environ["CRFL_CACHE_DIR"] = str(Path(name) / "cache")
        loading(Path(name))
        memory(Path(name))
