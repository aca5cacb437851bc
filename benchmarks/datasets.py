"""Loading images from the cache, from generated files of the size of MNIST."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np
from crfl_datasets.idx import MNIST_FILE_NAMES
from crfl_datasets.mnist import Mnist

from benchmarks.emnist import write
from benchmarks.timing import best_times, report


def measure_mnist(folder: Path) -> None:
    """Compare loading MNIST from the cache with NumPy reading the same numbers."""
    write(folder / "mnist", MNIST_FILE_NAMES, 60000, 10000, 10)
    dataset = Mnist(path=folder / "mnist")
    started = time.process_time()
    data = dataset.load()
    x = data.x
    first = time.process_time() - started
    for name, array in (("x", x), ("test_x", data.test_x)):
        np.save(folder / f"{name}.npy", array)
    times = best_times(
        {
            "ours": lambda: dataset.load().x,
            "numpy": lambda: [np.load(folder / f"{name}.npy") for name in ("x", "test_x")],
        },
        clock=time.process_time,  # one thread, and no waiting but for the processor
    )
    print(f"seconds to load MNIST: first {first:.2f}  cached {times['ours']:.3f}  np.load {times['numpy']:.3f}")
    report("seconds to load MNIST from the cache", times["ours"], "below 0.2")
    report("time to load bytes and scale them / np.load of float32", times["ours"] / times["numpy"], "at most 4")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.environ["CRFL_CACHE_DIR"] = str(Path(name) / "cache")
        measure_mnist(Path(name))
