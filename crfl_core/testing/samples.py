"""Small data, made in code, that plugins are tried on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.dataset import Dataset
from crfl_core.plugin_loading.registry import Registry
from crfl_core.records.inputs import Data, Domain

SIDE = 8
OWNERS = 10
"""How many natural owners the training samples come from, in turn."""


class Spots(Dataset):
    """Noisy images with one bright spot, which sits somewhere else in every class; or the same as tabular data."""

    samples: int = Field(500, ge=10, description="training samples; a fifth as many for testing")
    classes: int = Field(10, ge=2, le=16, description="number of classes")
    tabular: bool = Field(False, description="features with names instead of images")

    def read(self) -> Data:
        """The same samples every time."""
        generator = np.random.default_rng(7)
        x, y = self._draw(generator, self.samples)
        test_x, test_y = self._draw(generator, self.samples // 5)
        return Data(
            x=x,
            y=y,
            test_x=test_x,
            test_y=test_y,
            domain=Domain(0.0, 1.0),
            class_names=tuple(f"spot {label}" for label in range(self.classes)),
            feature_names=tuple(f"feature {column}" for column in range(SIDE**2)) if self.tabular else (),
            image_shape=None if self.tabular else (1, SIDE, SIDE),
            groups=np.arange(self.samples) % OWNERS,
            group_names=tuple(f"owner {number}" for number in range(OWNERS)),
        )

    def _draw(self, generator: np.random.Generator, samples: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        labels = np.arange(samples) % self.classes
        images = generator.uniform(0.0, 0.4, (samples, SIDE, SIDE))
        rows = 2 * (labels // 4)
        columns = 2 * (labels % 4)
        for shift in ((0, 0), (0, 1), (1, 0), (1, 1)):
            images[np.arange(samples), rows + shift[0], columns + shift[1]] += 0.5
        return images.reshape(samples, -1).astype(np.float32), labels


SPOTS = "conformance-spots"


def registry_with(plugins: dict[str, type[Plugin]]) -> Registry:
    """What is installed, the data of this module, and plugins under test."""
    return Registry({SPOTS: Spots} | plugins)


def small_config(**changes: Any) -> dict[str, Any]:
    """A run of a fraction of a second: three rounds of ten clients on spots, batches that do not divide evenly."""
    config: dict[str, Any] = {
        "name": "conformance",
        "rounds": 3,
        "device": "cpu",
        "dataset": {"type": SPOTS, "scaling": "none"},
        "partition": {"type": "iid", "clients": 10},
        "model": {"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
        "training": {"learning_rate": 0.5, "epochs": 1, "batch_size": 20},
        "server": {"clip_norm": 8.0, "noise_std": 0.01},
        "votes": {"models": 200, "selection_models": 40},
        "evaluation": {"every": 0},
        "storage": {"figures": [], "checkpoint_seconds": 0},
        "certificates": ["pathwise-linear"],
    }
    return config | changes
