"""Data as it flows from a dataset to the clients: plain, read-only containers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Domain:
    """The box of valid inputs, after scaling: what an attack is clamped to. Infinite if nothing is known."""

    low: float = float("-inf")
    high: float = float("inf")

    def norm_bound(self, inputs: int) -> float:
        """The largest Euclidean norm of an input of this many features.

        >>> Domain(0.0, 1.0).norm_bound(784)
        28.0
        """
        return float(max(abs(self.low), abs(self.high)) * inputs**0.5)


@dataclass(frozen=True)
class Scaling:
    """The affine map from raw to scaled inputs, `scaled = (raw - shift) * factor`; `fitted` on training data?"""

    kind: str = "none"
    shift: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))
    factor: NDArray[np.float64] = field(default_factory=lambda: np.ones(1))
    fitted: bool = False

    def apply(self, raw: NDArray[np.generic]) -> NDArray[np.float32]:
        """Scaled copy of raw inputs, in float32."""
        return ((raw.astype(np.float64) - self.shift) * self.factor).astype(np.float32)


@dataclass(frozen=True)
class Data:
    """A dataset in memory: inputs as rows of features, labels 0..classes-1, and what is known about them."""

    x: NDArray[np.generic]
    y: NDArray[np.int64]
    test_x: NDArray[np.generic]
    test_y: NDArray[np.int64]
    domain: Domain
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...] = ()
    image_shape: tuple[int, ...] | None = None
    groups: NDArray[np.int64] | None = None
    scaling: Scaling = field(default_factory=Scaling)


@dataclass(frozen=True)
class DataFacts:
    """What a model needs to know about its inputs, before any feature map."""

    inputs: int
    classes: int
    domain: Domain
    image_shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class FederatedData:
    """Scaled data as tensors, and which training rows each client holds."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    partition: Sequence[NDArray[np.int64]]
    facts: DataFacts
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...] = ()

    @property
    def clients(self) -> int:
        """Number of clients in the federation."""
        return len(self.partition)


@dataclass(frozen=True)
class Batches:
    """All local batches of some clients in one round, in scaled input space.

    `x` is (clients, steps, batch, features), `y` is (clients, steps, batch). Only the first `sizes[i, s]` rows
    of a batch are used; the rest is padding, and a size of 0 means that the client makes no such step.
    """

    x: Tensor
    y: Tensor
    sizes: Tensor
    clients: NDArray[np.int64]
    round: int
