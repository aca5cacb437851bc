"""The embedded default data."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crfl_core.extend import Data, Domain, SplitDataset

FILE = "datasets/data/digits.csv.gz"
"""Where scikit-learn keeps the digits: 64 pixels and a label in every line."""


class Digits(SplitDataset):
    """Handwritten digits, 8 x 8 pixels, shipped with scikit-learn (Alpaydin and Kaynak, 1998): no download."""

    def read(self) -> Data:
        """Read 1797 images with values 0..16, shuffled and split."""
        images, labels = load_digits()
        train, test = self.split(len(labels))
        return Data(
            x=images[train],
            y=labels[train],
            test_x=images[test],
            test_y=labels[test],
            domain=Domain(0.0, 16.0),
            class_names=tuple(str(digit) for digit in range(10)),
            feature_names=tuple(f"pixel_{row}_{column}" for row in range(8) for column in range(8)),
            image_shape=(8, 8),
        )


def load_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Load images and labels as scikit-learn ships them, without importing it.

    The import takes longer than a short run.
    """
    package = find_spec("sklearn")
    folders = [] if package is None else package.submodule_search_locations or []
    for file in (Path(folder, FILE) for folder in folders):
        if file.is_file():
            with gzip.open(file, "rt", encoding="ascii") as lines:
                table = np.loadtxt(lines, delimiter=",")
            return table[:, :-1].astype(np.float32), table[:, -1].astype(np.int64)
    from sklearn import datasets  # a version that keeps them elsewhere

    images, labels = datasets.load_digits(return_X_y=True)
    return images.astype(np.float32), labels.astype(np.int64)
