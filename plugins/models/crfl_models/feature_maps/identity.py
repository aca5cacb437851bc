"""No change at all."""

from __future__ import annotations

from torch import Tensor

from crfl_core.extend import BoundMap, FeatureMap


class BoundIdentity(BoundMap):
    """`x`."""

    lipschitz = 1.0

    def __init__(self, inputs: int) -> None:
        self.outputs = inputs

    def __call__(self, x: Tensor) -> Tensor:
        """(..., d) -> (..., d)."""
        return x

    def norm_bound(self, inputs: float) -> float:
        """Whatever the input's is."""
        return inputs


class Identity(FeatureMap):
    """The scaled input itself."""

    def bind(self, inputs: int) -> BoundMap:
        """Keeps the number of features."""
        return BoundIdentity(inputs)
