"""The embedded default data."""

from __future__ import annotations

import numpy as np

from crfl_core.extend import Data, Domain, SplitDataset


class Digits(SplitDataset):
    """Handwritten digits, 8 x 8 pixels, shipped with scikit-learn (Alpaydin and Kaynak, 1998): no download."""

    def read(self) -> Data:
        """1797 images with values 0..16, shuffled and split."""
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        images, labels = images.astype(np.float32), labels.astype(np.int64)
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
