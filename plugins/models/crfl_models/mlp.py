"""A small multi-layer perceptron."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from pydantic import Field
from torch import nn

from crfl_core.extend import BoundModel, DataFacts, Model, ModuleModel


class Mlp(Model):
    """Fully connected layers with ReLU. Not convex: certificates that need convexity are refused."""

    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (64,), min_length=1, description="width of each hidden layer"
    )

    def build(self, facts: DataFacts) -> BoundModel:
        """PyTorch's default initialisation."""

        def module() -> nn.Module:
            sizes = [facts.inputs, *self.hidden]
            layers: list[nn.Module] = []
            for inputs, outputs in pairwise(sizes):
                layers += [nn.Linear(inputs, outputs), nn.ReLU()]
            return nn.Sequential(*layers, nn.Linear(sizes[-1], facts.classes))

        return ModuleModel(module)
