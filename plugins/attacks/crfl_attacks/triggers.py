"""Backdoor patterns: a fixed vector that is added to an input."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from crfl_core.extend import DataFacts, OptionError, Table

Norm = Annotated[
    float, Field(gt=0, allow_inf_nan=False, description="L2 norm of the pattern, before clamping to the valid range")
]


class PixelTrigger(Table):
    """A square of equally bright pixels, in a corner of an image or where `position` says."""

    type: Literal["pixels"] = "pixels"
    norm: Norm = 1.0
    size: int = Field(2, ge=1, description="side of the square in pixels")
    corner: Literal["top-left", "top-right", "bottom-left", "bottom-right"] = Field(
        "top-left", description="where the square sits, unless a position is given"
    )
    position: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] | None = Field(
        None, description="row and column of the square's first pixel; unset: in the corner"
    )

    def pattern(self, facts: DataFacts) -> Tensor:
        """Return the vector that is added to a flat image."""
        if facts.image_shape is None:
            raise OptionError("trigger.type", "'pixels' needs images: use 'features' for tabular data")
        height, width = facts.image_shape[-2:]
        if self.size > min(height, width):
            raise OptionError("trigger.size", f"found {self.size}, but images are {height} x {width}")
        row, column = self.position or self._in_corner(height, width)
        if row + self.size > height or column + self.size > width:
            found = f"{self.size} pixels from row {row} and column {column}"
            raise OptionError("trigger.position", f"{found} do not fit into images of {height} x {width}")
        image = torch.zeros(facts.image_shape, dtype=torch.float64)
        image[..., row : row + self.size, column : column + self.size] = 1.0
        return scale_to_norm(image.flatten(), self.norm)

    def _in_corner(self, height: int, width: int) -> tuple[int, int]:
        return (
            0 if self.corner.startswith("top") else height - self.size,
            0 if self.corner.endswith("left") else width - self.size,
        )


class FeatureTrigger(Table):
    """Some features raised by the same amount."""

    type: Literal["features"] = "features"
    norm: Norm = 1.0
    features: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1, description="indices of the features")

    def pattern(self, facts: DataFacts) -> Tensor:
        """Return the vector that is added to an input."""
        if max(self.features) >= facts.inputs:
            raise OptionError(
                "trigger.features",
                f"there is no feature {max(self.features)}: features are 0..{facts.inputs - 1}",
            )
        flat = torch.zeros(facts.inputs, dtype=torch.float64)
        flat[list(self.features)] = 1.0
        return scale_to_norm(flat, self.norm)


def scale_to_norm(pattern: Tensor, norm: float) -> Tensor:
    """Scale a pattern to an L2 norm."""
    return pattern * (norm / float(torch.linalg.vector_norm(pattern)))


def split_pattern(pattern: Tensor, parts: int, facts: DataFacts) -> Tensor:
    """Split a pattern into patterns, (parts, inputs), that share no pixel.

    Their sum is the pattern; the channels of a pixel stay together.

    >>> from crfl_core.extend import Domain
    >>> split_pattern(torch.tensor([1.0, 0.0, 2.0, 3.0]), 2, DataFacts(4, 2, Domain())).tolist()
    [[1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.0, 3.0]]
    """
    plane = facts.inputs if facts.image_shape is None else math.prod(facts.image_shape[-2:])
    places = torch.nonzero(pattern.view(-1, plane).any(0)).flatten()
    pieces = pattern.new_zeros(parts, len(pattern))
    for piece, some in zip(pieces, places.tensor_split(parts), strict=True):
        piece.view(-1, plane)[:, some] = pattern.view(-1, plane)[:, some]
    return pieces


Trigger = Annotated[PixelTrigger | FeatureTrigger, Field(discriminator="type")]
