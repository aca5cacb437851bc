"""A model for crfl."""

from __future__ import annotations

from crfl_core.extend import BoundModel, DataFacts, Model, ModuleModel
from pydantic import Field
from torch import nn


class MyPlugin(Model):
    """One hidden layer with tanh.

    Any module without buffers and stochastic layers will do. Its loss is not convex in the parameters, so certificates
    that need this are refused.
    """

    width: int = Field(32, ge=1, description="units of the hidden layer")

    def build(self, facts: DataFacts) -> BoundModel:
        """Return the model for these inputs and classes, from a function that makes a fresh module."""
        return ModuleModel(
            lambda: nn.Sequential(
                nn.Linear(facts.inputs, self.width),
                nn.Tanh(),
                nn.Linear(self.width, facts.classes),
            )
        )
