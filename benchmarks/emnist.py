"""The largest data of the paper, EMNIST with 50 clients, from files to certificates: time and memory.

Files are generated, 697,932 images for training and 116,323 for testing as in the split bymerge. Each line is a whole
run of `examples/emnist.toml` with few rounds, an attack and certificates, then other votes on it, in a process of its
own. Anonymous memory counts: pages of mapped files are the kernel's to take back. At last every figure of the paper is
made of the same files, as `crfl paper reproduce emnist --fast` does, with the sound line beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from crfl_datasets.emnist import split_file_names
from crfl_datasets.idx import IdxFileNames
from crfl_experiments.paper import reproduce

from benchmarks.memory import memory_status, watch_peak
from benchmarks.timing import report

EXAMPLE = Path(__file__).parents[1] / "examples" / "emnist.toml"
TRAIN = 697932
TESTS = 116323
CLASSES = 47
ROWS_AT_ONCE = 10000
FEWER = ("rounds=3", "attack.rounds=[2]", "engine.threads=1", "votes.models=1000")
KINDS: dict[str, tuple[str, ...]] = {
    "as in the paper": (),
    "all test images": ("dataset.test_samples=116323",),
    "behind a feature map": ('model.features={type="unit-ball"}',),
}
"""What is measured, and what is set for it."""


def write(folder: Path, names: IdxFileNames, train: int, tests: int, classes: int) -> None:
    """Four unpacked files of random strokes: three pixels in four are black, and half of the others those of a class.

    No two images are alike: the last pixels of each are its number.
    """
    generator = np.random.default_rng(0)
    labels_of_some = np.arange(ROWS_AT_ONCE) % classes
    some = generator.integers(0, 256, (ROWS_AT_ONCE, 28, 28), dtype=np.uint8)
    strokes = generator.random((classes, 28, 28)) < 0.25
    own = generator.random(some.shape) < 0.5
    some[~np.where(own, strokes[labels_of_some], generator.random(some.shape) < 0.25)] = 0
    folder.mkdir()
    for count, before, images, labels in (
        (train, 0, names.train_images, names.train_labels),
        (tests, train, names.test_images, names.test_labels),
    ):
        with (folder / images.removesuffix(".gz")).open("wb") as file:
            file.write(bytes([0, 0, 8, 3]) + np.array([count, 28, 28], ">u4").tobytes())
            for first in range(0, count, ROWS_AT_ONCE):
                part = some[: count - first].copy()
                numbers = before + first + np.arange(len(part))
                part[:, -1, -4:] = numbers.astype(">u4")[:, None].view(np.uint8)
                file.write(part.tobytes())
        with (folder / labels.removesuffix(".gz")).open("wb") as file:
            file.write(bytes([0, 0, 8, 1]) + np.array([count], ">u4").tobytes())
            file.write(labels_of_some[np.arange(count) % ROWS_AT_ONCE].astype(np.uint8).tobytes())


def play(folder: Path, out: Path, kind: str) -> None:
    """Run and ask in this process; print the peak of anonymous memory, that of all pages, and seconds."""
    from crfl_core import certify, run

    changes = (*FEWER, f"dataset.path={folder}", *KINDS[kind])
    started = time.monotonic()
    with watch_peak() as peak:
        found = run(EXAMPLE, overrides=changes, out=out)
        trained = time.monotonic()
        answer = certify(found, ["votes.models=500"])
        assert answer.curves
    print(peak[0], memory_status("VmHWM"), trained - started, time.monotonic() - trained)


def figures(folder: Path, out: Path) -> float:
    """Return the seconds that all figures on EMNIST take, fast and with one seed; the page must judge every claim."""
    started = time.monotonic()
    found = reproduce(["emnist"], seeds=1, fast=True, out=out, overrides=[f"dataset.path={folder}"])
    assert not found.failures, found.failures
    assert all(section.picture and section.numbers for section in found.sections)
    assert all(finding.verdict != "not measured" for section in found.sections for finding in section.findings)
    return time.monotonic() - started


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.environ["CRFL_CACHE_DIR"] = str(Path(name) / "cache")
        write(Path(name) / "emnist", split_file_names("bymerge"), TRAIN, TESTS, CLASSES)
        for place, kind in enumerate(KINDS):
            command = [
                sys.executable,
                "-m",
                "benchmarks.emnist",
                str(Path(name) / "emnist"),
                f"{name}/run-{place}",
                kind,
            ]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            anonymous, highest, run, certify = map(float, done.stdout.split()[-4:])
            print(f"{kind}: run {run:.0f} s, certify {certify:.0f} s, with mapped files {highest / 2**30:.2f} GiB")
            report(f"GiB at the peak of EMNIST with 50 clients, {kind}", anonymous / 2**30, "below 2")
        minutes = figures(Path(name) / "emnist", Path(name) / "reproduction") / 60
        report("minutes of `crfl paper reproduce emnist --fast --seeds 1`", minutes, "below 10")


if __name__ == "__main__":
    play(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
