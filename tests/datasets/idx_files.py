"""IDX files for tests."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
from crfl_datasets.idx import MNIST_FILE_NAMES, IdxFileNames
from numpy.typing import NDArray


def idx(array: NDArray[Any]) -> bytes:
    """An array of bytes in the IDX format."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def write_four(
    folder: Path,
    train: int = 50,
    tests: int = 20,
    *,
    pixels: tuple[int, int] = (6, 4),
    classes: int = 10,
    first: int = 0,
    names: IdxFileNames = MNIST_FILE_NAMES,
) -> None:
    """The four packed files of a small set: random images, and labels that take turns."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for count, images, labels in (
        (train, names.train_images, names.train_labels),
        (tests, names.test_images, names.test_labels),
    ):
        (folder / images).write_bytes(gzip.compress(idx(generator.integers(0, 256, (count, *pixels)))))
        (folder / labels).write_bytes(gzip.compress(idx(np.arange(count) % classes + first)))
