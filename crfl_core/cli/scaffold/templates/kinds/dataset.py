"""A dataset for crfl."""

from __future__ import annotations

import numpy as np
from crfl_core.extend import Data, Dataset, Domain
from pydantic import Field


class MyPlugin(Dataset):
    """Gaussian clouds around one random centre per class: data that need no file.

    Inputs lie in the box [0, 1]. The same options give the same data, everywhere.
    """

    classes: int = Field(4, ge=2, description="number of classes")
    features: int = Field(16, ge=1, description="number of features of an input")
    per_class: int = Field(150, ge=1, description="training samples of each class; there are a third as many for tests")
    spread: float = Field(0.15, gt=0, description="standard deviation of a cloud")
    seed: int = Field(0, ge=0, description="draws centres and samples")

    def read(self) -> Data:
        """Return raw arrays, one row per sample, and their domain. The base class scales and cuts them."""
        generator = np.random.default_rng(self.seed)
        centres = generator.uniform(0.2, 0.8, (self.classes, self.features))
        test, total = -(-self.per_class // 3), self.per_class + -(-self.per_class // 3)
        labels = generator.permutation(np.repeat(np.arange(self.classes), total))
        inputs = generator.normal(centres[labels], self.spread).clip(0.0, 1.0).astype(np.float32)
        held_out = test * self.classes
        return Data(
            x=inputs[held_out:],
            y=labels[held_out:],
            test_x=inputs[:held_out],
            test_y=labels[:held_out],
            domain=Domain(0.0, 1.0),
            class_names=tuple(f"cloud {number}" for number in range(self.classes)),
        )
