"""Model `softmax`: multi-class logistic regression, the paper's model."""

from __future__ import annotations

from pydantic import Field

from crfl_core.extend import BoundModel, DataFacts, LinearModel, Model


class Softmax(Model):
    """Softmax regression with cross-entropy: convex, so every certificate applies."""

    bias: bool = Field(True, description="a constant input whose weights are trained, clipped and noised like all")

    def build(self, facts: DataFacts) -> BoundModel:
        """Build the model, which starts from zero."""
        return LinearModel(facts.inputs, facts.classes, bias=self.bias)
