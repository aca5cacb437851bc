"""The embedded default data."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from crfl_core import Data, Dataset, Domain


class Digits(Dataset):
    """Handwritten digits, 8 x 8 pixels, shipped with scikit-learn (Alpaydin and Kaynak, 1998): no download."""

    test_fraction: float = Field(0.2, gt=0, lt=1, description="share of the 1797 images kept for testing")
    split_seed: int = Field(0, ge=0, description="seed of the split into training and test images")

    def read(self) -> Data:
        """1797 images with values 0..16, shuffled and split."""
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(self.split_seed).permutation(len(labels))
        images, labels = images[order].astype(np.float32), labels[order].astype(np.int64)
        test = round(len(labels) * self.test_fraction)
        return Data(
            x=images[test:],
            y=labels[test:],
            test_x=images[:test],
            test_y=labels[:test],
            domain=Domain(0.0, 16.0),
            class_names=tuple(str(digit) for digit in range(10)),
            feature_names=tuple(f"pixel_{row}_{column}" for row in range(8) for column in range(8)),
            image_shape=(8, 8),
        )
