"""Small neural networks: a multi-layer perceptron and a convolutional network."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from pydantic import Field
from torch import nn

from crfl_core.extend import BoundModel, DataFacts, Model, ModuleModel, OptionError


class Mlp(Model):
    """Fully connected layers with ReLU. Not convex: certificates that need convexity are refused."""

    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (64,), min_length=1, description="width of each hidden layer"
    )

    def build(self, facts: DataFacts) -> BoundModel:
        """Build the network with PyTorch's default initialisation."""

        def module() -> nn.Module:
            sizes = [facts.inputs, *self.hidden]
            layers: list[nn.Module] = []
            for inputs, outputs in pairwise(sizes):
                layers += [nn.Linear(inputs, outputs), nn.ReLU()]
            return nn.Sequential(*layers, nn.Linear(sizes[-1], facts.classes))

        return ModuleModel(module)


KERNEL = 3


class Cnn(Model):
    """3 x 3 convolutions with ReLU and pooling, then one linear layer. Not convex, like `mlp`."""

    channels: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (8, 16), min_length=1, description="channels of each convolution; the image is halved after each"
    )

    def build(self, facts: DataFacts) -> BoundModel:
        """Build the network with PyTorch's default initialisation."""
        if facts.image_shape is None:
            raise OptionError("type", "'cnn' needs images: use 'softmax' or 'mlp' for tabular data")
        height, width = facts.image_shape[-2:]
        smallest = 2 ** len(self.channels)
        if min(height, width) < smallest:
            raise OptionError(
                "channels",
                f"{len(self.channels)} layers halve the image as often: it must be at least {smallest} pixels "
                f"wide, found {height} x {width}",
            )
        colours = facts.image_shape[0] if len(facts.image_shape) == 3 else 1  # (channels, height, width)

        def module() -> nn.Module:
            layers: list[nn.Module] = [nn.Unflatten(1, (colours, height, width))]
            inputs = colours
            for outputs in self.channels:
                layers += [nn.Conv2d(inputs, outputs, KERNEL, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
                inputs = outputs
            rest = (height // smallest) * (width // smallest) * inputs
            return nn.Sequential(*layers, nn.Flatten(), nn.Linear(rest, facts.classes))

        return ModuleModel(module)
