"""What datasets of images in four IDX files have in common."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crfl_core.extend import Data, DataError, DataFile, Domain, FileDataset
from crfl_datasets.idx import REMEDY, Bytes, read_images, read_labels


class Names(NamedTuple):
    """The names of the four files."""

    train_images: str
    train_labels: str
    test_images: str
    test_labels: str


MNIST = Names(
    "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
)
"""As MNIST and the sets that took its place call them."""


class ImageDataset(FileDataset):
    """Grey images with values 0..255 and an official test set."""

    def read_four(
        self, names: Names, class_names: tuple[str, ...], *, first_label: int = 0, turned: bool = False
    ) -> Data:
        """The content of the four files; `turned` if they hold columns of pixels where others hold rows."""
        x, y = pair(self.file(names.train_images), self.file(names.train_labels), turned=turned)
        test_x, test_y = pair(self.file(names.test_images), self.file(names.test_labels), turned=turned)
        if x.shape[1:] != test_x.shape[1:]:
            found = f"images are {size(test_x)}, but those for training are {size(x)}"
            raise DataError(f"{self.file(names.test_images)}: {found}: {REMEDY}")
        height, width = x.shape[1:]
        return Data(
            x=x.reshape(len(x), -1),
            y=classes(self.file(names.train_labels), y, len(class_names), first_label),
            test_x=test_x.reshape(len(test_x), -1),
            test_y=classes(self.file(names.test_labels), test_y, len(class_names), first_label),
            domain=Domain(0.0, 255.0),
            class_names=class_names,
            feature_names=tuple(f"pixel_{row}_{column}" for row in range(height) for column in range(width)),
            image_shape=(height, width),
        )


def pair(images: Path, labels: Path, *, turned: bool) -> tuple[Bytes, Bytes]:
    """Images with their labels."""
    x = read_images(images, turned=turned)
    y = read_labels(labels)
    if len(x) != len(y):
        raise DataError(f"{labels}: has {len(y)} labels, but {images} has {len(x)} images: {REMEDY}")
    return x, y


def classes(path: Path, labels: Bytes, count: int, first: int) -> NDArray[np.int64]:
    """Labels as classes 0..count-1."""
    found = labels.astype(np.int64) - first
    outside = (found < 0) | (found >= count)
    if outside.any():
        position = int(np.argmax(outside))
        what = f"label {labels[position]} at position {position} is not within {first}..{first + count - 1}"
        raise DataError(f"{path}: {what}: {REMEDY}")
    return found


def size(images: Bytes) -> str:
    """Height and width in words."""
    return " x ".join(map(str, images.shape[1:]))


def mirrored(name: str, sha256: str, size: int, mirrors: tuple[str, ...]) -> DataFile:
    """A file that several sites offer under one name."""
    return DataFile(name, sha256, size, tuple(mirror + name for mirror in mirrors))
