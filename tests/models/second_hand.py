"""Softmax regression at second hand, for tests that change one of its answers."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from crfl_core.extend import BoundModel, LinearModel, ModelFacts


class Regression(BoundModel):
    """Softmax regression at second hand: the core's own may not be changed."""

    def __init__(self, inputs: int, classes: int, *, bias: bool) -> None:
        self._own = LinearModel(inputs, classes, bias=bias)
        self.layout = self._own.layout
        self.facts = ModelFacts(linear=False, convex=True, bias=bias)

    def initial_parameters(self, generator: np.random.Generator) -> Tensor:
        return self._own.initial_parameters(generator)

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self._own.logits(parameters, x)

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        return self._own.gradient(parameters, x, y, weights)

    def gradient_bound(self, input_norm: float) -> float:
        return self._own.gradient_bound(input_norm)

    def operator_norm(self, parameters: Tensor) -> float | None:
        return self._own.operator_norm(parameters)
