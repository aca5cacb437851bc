"""Feature maps on images of MNIST's size: processor time for all 70,000, and what the cache saves.

The images are strokes, as `whiten` draws them. A tenth of them is computed, and the time multiplied.
"""

from __future__ import annotations

import os
import tempfile
import time

import numpy as np
import torch
from crfl_models.feature_maps.deskew import Deskew
from crfl_models.feature_maps.group_norm import GroupNorm
from crfl_models.feature_maps.scattering import Scattering
from crfl_models.feature_maps.whiten import Whiten, draw_strokes
from torch import Tensor

from benchmarks.timing import report
from crfl_core.extend import FeatureMap
from crfl_core.plugin_api.feature_map import FeatureMaps
from crfl_core.training.features import load_or_compute_features

IMAGES = 70_000
PART = 10
GROUPS = {8: 27, 4: 5}


def chain(angles: int, public: Tensor) -> FeatureMaps:
    """Build the recipe for handwriting."""
    front: list[FeatureMap] = [Deskew(), Scattering(angles=angles), GroupNorm(groups=GROUPS[angles])]
    whiten = Whiten(components=300, floor=20)
    fitted = whiten.fit(FeatureMaps(front, 784, (28, 28))(public))
    return FeatureMaps([*front, whiten], 784, (28, 28), {len(front): fitted})


def main() -> None:
    torch.set_num_threads(1)
    images = torch.from_numpy(draw_strokes(IMAGES // PART, 28, 28, 1).astype(np.float32))
    for angles, target in ((4, 45), (8, 150)):
        with tempfile.TemporaryDirectory() as name:
            os.environ["CRFL_CACHE_DIR"] = name
            maps = chain(angles, images[:1000])
            started = time.process_time()
            maps(images)
            seconds = time.process_time() - started
            report(f"processor seconds for 70,000 images, {angles} angles", PART * seconds, f"at most {target}")
            load_or_compute_features(maps, images)
            started = time.process_time()
            load_or_compute_features(maps, images)
            report("features from the cache / computed", (time.process_time() - started) / seconds, "at most 0.05")
