"""The small federations of these tests: their data, and the configs that describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from crfl_datasets.digits import Digits
from numpy.typing import NDArray

from crfl_core.extend import Data, Dataset, Domain, Partitioner, Streams


@cache
def all_digits() -> Data:
    """Read once for all worlds."""
    return Digits().read()


class CachedDigits(Digits):
    """The embedded digits, from memory."""

    def read(self) -> Data:
        return all_digits()


class ZerosAndOnes(CachedDigits):
    """Only the digits 0 and 1, which even a noisy model tells apart."""

    def read(self) -> Data:
        data = all_digits()
        train, test = data.y < 2, data.test_y < 2
        return replace(
            data,
            x=data.x[train],
            y=data.y[train],
            test_x=data.test_x[test],
            test_y=data.test_y[test],
            class_names=("0", "1"),
        )


class Coins(Dataset):
    """Two classes that cannot be told apart: all inputs are the same unit vector, labels alternate.

    Near the zero model the loss is a quadratic with the largest curvature that is possible, so bounds are nearly
    attained.
    """

    def read(self) -> Data:
        x = np.tile(np.array([1.0, 0.0], np.float32), (80, 1))
        labels = np.arange(80) % 2
        return Data(x, labels, x[:4], labels[:4], Domain(0.0, 1.0), ("heads", "tails"))


class Halves(Partitioner):
    """Two clients with as many heads as tails each."""

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        rows = np.arange(len(data.x))
        return rows[: len(rows) // 2], rows[len(rows) // 2 :]


def small(**changes: Any) -> dict[str, Any]:
    """Four clients on 200 digits for four rounds, in double precision, with inputs of norm at most 1."""
    config: dict[str, Any] = {
        "name": "small",
        "rounds": 4,
        "device": "cpu",
        "dtype": "float64",
        "dataset": {"type": "cached-digits", "train_samples": 200, "test_samples": 60},
        "partition": {"type": "iid", "clients": 4},
        "model": {"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
        "training": {"learning_rate": 0.5, "steps": 4, "batch_size": 16},
        "server": {"clip_norm": 4.0, "noise_std": 0.02, "cap_updates": False},
        "evaluation": {"every": 0},
        "engine": {"type": "local", "threads": 1},
        "storage": {"figures": []},
        "certificates": [{"type": "pathwise-linear"}],
    }
    return config | changes


def certifiable(**changes: Any) -> dict[str, Any]:
    """Twenty clients that make one step in each of thirty rounds and forget slowly: much of it is certified."""
    settings: dict[str, Any] = {
        "rounds": 30,
        "dataset": {"type": "cached-digits", "train_samples": 600, "test_samples": 200},
        "partition": {"type": "iid", "clients": 20},
        "model": {"type": "softmax", "bias": False, "features": {"type": "unit-ball", "radius": 3.0}},
        "training": {"learning_rate": 1.0, "steps": 1, "batch_size": 16, "weight_decay": 0.01},
        "server": {"clip_norm": 20.0, "noise_std": 0.01, "cap_updates": False},
        "aggregation": [{"type": "update-cap", "bound": "honest"}, {"type": "fedavg"}],
    }
    return small(**(settings | changes))


def coins(training: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Two clients on coins, each with all of its 40 samples in every batch, without noise and without a clip."""
    return small(
        dataset={"type": "coins"},
        partition={"type": "halves"},
        model={"type": "softmax", "bias": False, "features": {"type": "unit-ball", "radius": 1.0}},
        training={"batch_size": 40, **training},
        server={"clip_norm": 1e6, "noise_std": 0.0, "cap_updates": False},
        **changes,
    )
