"""A frozen encoder of images in front of a linear model: extraction, and rounds on the features that it leaves.

Extraction is compared with the network alone, in batches of 32 resized images, and reading from the cache with
extraction. A round on cached features is compared with a round of softmax regression on as many random features. It
takes the extra `crfl[encoders]`. CPU seconds of one thread.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from typing import Any

import torch
from crfl_models.feature_maps.image_encoders import EfficientNetLite
from torch import Tensor

from benchmarks.round_runner import Rounds
from benchmarks.timing import best_times, median_ratio, report
from crfl_core.plugin_api.feature_map import FeatureMaps
from crfl_core.training.features import load_or_compute_features

SHAPE = (3, 32, 32)
RESOLUTION = 128
IMAGES = 256
BATCH = 32
TURNS = 5
CLIENTS = 20
STEPS = 30
SETTINGS: dict[str, Any] = {
    "rounds": 1000,
    "partition": {"type": "iid", "clients": CLIENTS},
    "model": {"type": "softmax", "bias": False},
    "training": {"learning_rate": 0.1, "steps": STEPS, "batch_size": BATCH},
    "server": {"clip_norm": 100.0, "noise_std": 0.0},
    "evaluation": {"every": 0},
}


class Extraction:
    """Features of all images: by the feature map, or by its network in larger batches."""

    def __init__(self) -> None:
        encoder = EfficientNetLite(variant="lite0", resolution=RESOLUTION)
        self.maps = FeatureMaps([encoder], 3 * 32 * 32, SHAPE)
        self.images = torch.rand(IMAGES, 3 * 32 * 32)
        bound: Any = self.maps.links[0]
        self.network = bound._on(torch.device("cpu"))
        resized = torch.nn.functional.interpolate(self.images.view(-1, *SHAPE), (RESOLUTION, RESOLUTION))
        self.resized = resized.contiguous(memory_format=torch.channels_last)

    def with_map(self) -> Tensor:
        """Compute features as a run does, without the cache."""
        return self.maps(self.images)

    @torch.inference_mode()
    def with_network(self) -> Tensor:
        """Compute features with the network alone."""
        return torch.cat([self.network.extract_features(some).mean((2, 3)) for some in self.resized.split(BATCH)])


def main() -> None:
    torch.set_num_threads(1)
    if importlib.util.find_spec("efficientnet_lite_pytorch") is None:
        print("EfficientNet-Lite is not installed: pip install 'crfl[encoders]'")
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CRFL_CACHE_DIR"] = folder
        extraction = Extraction()
        ratio = median_ratio(extraction.with_map, extraction.with_network, turns=TURNS, clock=time.process_time)
        report("extraction / the network alone", ratio, "at most 1.1")
        candidates = {
            "computed": extraction.with_map,
            "cached": lambda: load_or_compute_features(extraction.maps, extraction.images),
        }
        times = best_times(candidates, turns=TURNS, clock=time.process_time)
        report("features from the cache / computed", times["cached"] / times["computed"], "at most 0.1")
        data = {"type": "random-images", "samples": 3000, "tests": 10}
        images = data | {"features": 3 * 32 * 32, "shape": SHAPE}
        maps = [{"type": "efficientnet-lite", "resolution": 32}]
        heads = {
            "cached": Rounds(SETTINGS | {"dataset": images, "model": SETTINGS["model"] | {"features": maps}}),
            "plain": Rounds(SETTINGS | {"dataset": data | {"features": extraction.maps.outputs}}),
        }
        times = best_times(heads, turns=TURNS, clock=time.process_time)
        report(
            "a round of a head on cached features / of softmax regression",
            times["cached"] / times["plain"],
            "at most 1.1",
        )
