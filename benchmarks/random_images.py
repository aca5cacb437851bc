"""Random data of the shape of MNIST, as a dataset plugin: benchmarks need no download."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from crfl_core.extend import Data, Dataset, Domain


class RandomImages(Dataset):
    """Bytes of uniform noise with random labels, in [0, 1] as pixels are."""

    samples: int = Field(60000, ge=1, description="training samples")
    tests: int = Field(5000, ge=1, description="test samples")
    features: int = Field(784, ge=1, description="features")
    shape: tuple[int, ...] | None = Field(None, description="shape of an image; unset: features have none")

    def read(self) -> Data:
        """Generate the same numbers every time."""
        generator = np.random.default_rng(0)

        def images(count: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
            return generator.integers(0, 256, (count, self.features), dtype=np.uint8)

        return Data(
            x=images(self.samples),
            y=generator.integers(10, size=self.samples),
            test_x=images(self.tests),
            test_y=generator.integers(10, size=self.tests),
            domain=Domain(0.0, 255.0),
            class_names=tuple(map(str, range(10))),
            image_shape=self.shape,
        )
