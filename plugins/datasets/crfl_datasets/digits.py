"""The embedded default data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crfl_core.extend import Data, Domain, SplitDataset

FILE = Path(__file__).with_name("data") / "digits.npz"
"""Images and labels, CC BY 4.0: see LICENSE-digits.txt beside them."""


class Digits(SplitDataset):
    """Handwritten digits, 8 x 8 pixels, shipped with crfl (Alpaydin and Kaynak, 1998; CC BY 4.0): no download."""

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
    """Load all 1797 images and their labels."""
    with np.load(FILE) as arrays:
        return arrays["x"].astype(np.float32), arrays["y"].astype(np.int64)
