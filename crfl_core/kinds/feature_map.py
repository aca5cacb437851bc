"""Feature maps: fixed, public, data-free functions between the scaled input and the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from crfl_core.errors import failures_named
from crfl_core.kinds.plugin import Plugin

if TYPE_CHECKING:
    from torch import Tensor


class BoundMap(ABC):
    """A feature map for inputs of a known size.

    `outputs` is the number of features, `lipschitz` the Lipschitz constant (None if there is none). A map that was made
    elsewhere, from a file or by training, gives its `digest`, by which the ledger says which one it was.
    """

    outputs: int
    lipschitz: float | None
    digest: str = ""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""

    @abstractmethod
    def norm_bound(self, inputs: float) -> float:
        """A bound on the norm of an output, given one on the norm of an input (which may be infinite)."""


class FeatureMap(Plugin):
    """A function that everybody knows before the data are seen, so that it leaks and learns nothing."""

    @abstractmethod
    def bind(self, inputs: int) -> BoundMap:
        """The map for inputs of this size."""


class FeatureMaps(BoundMap):
    """Several maps, one after the other; none is the identity."""

    def __init__(self, maps: Sequence[FeatureMap], inputs: int) -> None:
        self._maps = tuple(maps)
        self.links: list[BoundMap] = []
        self.outputs, self.lipschitz = inputs, 1.0
        for feature_map in maps:
            with failures_named(f"feature map {feature_map.full_name} failed"):
                link = feature_map.bind(self.outputs)
            self.links.append(link)
            self.outputs = link.outputs
            known = self.lipschitz is not None and link.lipschitz is not None
            self.lipschitz = self.lipschitz * link.lipschitz if known else None  # type: ignore[operator]

    @property
    def names(self) -> str:
        """What they are called, in order."""
        return ", ".join(feature_map.full_name for feature_map in self._maps)

    def __call__(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        for feature_map, link in zip(self._maps, self.links, strict=True):
            with failures_named(f"feature map {feature_map.full_name} failed"):
                x = link(x)
        return x

    def norm_bound(self, inputs: float) -> float:
        """The bound of the last map, given those before it."""
        for link in self.links:
            inputs = link.norm_bound(inputs)
        return inputs
