"""Backdoor patterns: a fixed vector that is added to an input."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from crfl_core import DataFacts, OptionError, Table


class PixelTrigger(Table):
    """A square of equally bright pixels in a corner of an image."""

    type: Literal["pixels"] = "pixels"
    norm: float = Field(1.0, gt=0, description="L2 norm of the pattern, before clamping to the valid range")
    size: int = Field(2, ge=1, description="side of the square in pixels")
    corner: Literal["top-left", "top-right", "bottom-left", "bottom-right"] = Field(
        "top-left", description="where the square sits"
    )

    def pattern(self, facts: DataFacts) -> Tensor:
        """The vector that is added to a flat image."""
        if facts.image_shape is None:
            raise OptionError("trigger.type", "'pixels' needs images: use 'features' for tabular data")
        height, width = facts.image_shape[-2:]
        if self.size > min(height, width):
            raise OptionError("trigger.size", f"found {self.size}, but images are {height} x {width}")
        rows = slice(0, self.size) if self.corner.startswith("top") else slice(height - self.size, height)
        columns = slice(0, self.size) if self.corner.endswith("left") else slice(width - self.size, width)
        image = torch.zeros(facts.image_shape, dtype=torch.float64)
        image[..., rows, columns] = 1.0
        return of_norm(image.flatten(), self.norm)


class FeatureTrigger(Table):
    """Some features raised by the same amount."""

    type: Literal["features"] = "features"
    norm: float = Field(1.0, gt=0, description="L2 norm of the pattern, before clamping to the valid range")
    features: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1, description="indices of the features")

    def pattern(self, facts: DataFacts) -> Tensor:
        """The vector that is added to an input."""
        if max(self.features) >= facts.inputs:
            raise OptionError(
                "trigger.features",
                f"there is no feature {max(self.features)}: features are 0..{facts.inputs - 1}",
            )
        flat = torch.zeros(facts.inputs, dtype=torch.float64)
        flat[list(self.features)] = 1.0
        return of_norm(flat, self.norm)


def of_norm(pattern: Tensor, norm: float) -> Tensor:
    """The pattern scaled to an L2 norm."""
    return pattern * (norm / float(torch.linalg.vector_norm(pattern)))


Trigger = Annotated[PixelTrigger | FeatureTrigger, Field(discriminator="type")]
