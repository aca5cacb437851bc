"""A small federation whose honest clients scale their batches, in double precision and independent of the core."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.special import softmax

from crfl_core.certification.formulas import (
    Array,
    batch_factor,
    batch_spectrum,
    largest_rate,
    residual_bound,
    retention,
)


def gradient(x: Array, labels: Array, weights: Array) -> Array:
    """Of the mean loss of a batch, (..., features, classes)."""
    residual = softmax(x @ weights, axis=-1) - labels
    found: Array = np.swapaxes(x, -1, -2) @ residual / x.shape[-2]
    return found


@dataclass
class Federation:
    """Softmax regression with weight decay and batches scaled to a limit, a centred cap, and the first clients bad.

    `bound` is kappa, the longest gradient of an honest batch: that of the limit unless it is told.
    """

    generator: np.random.Generator
    decay: float
    limit: float
    bound: float | None = None
    start_limit: float = np.inf
    rounds: int = 12
    steps: int = 2
    classes: int = 3
    x: Array = field(init=False)

    def __post_init__(self) -> None:
        clients, samples, features = 5, 6, int(self.generator.integers(2, 5))
        x = self.generator.normal(size=(clients, samples, features)) * self.generator.uniform(0.1, 1.0, size=features)
        self.x = x / np.linalg.norm(x, axis=2, keepdims=True)
        self.labels = np.eye(self.classes)[self.generator.integers(self.classes, size=(clients, samples))]
        self.attackers = int(self.generator.integers(1, 3))
        self.weights = self.generator.dirichlet(np.ones(clients))
        self.weights[: self.attackers] *= 10.0 ** self.generator.uniform(-2.0, 0.0)
        self.weights /= self.weights.sum()
        self.rate = float(largest_rate(self.limit / 2.0, self.decay))
        self.kept = float(retention(self.rate, self.steps, self.decay))
        if self.bound is None:
            self.bound = float(np.sqrt(2.0 * self.limit))
        self.cap = float(residual_bound(self.bound, self.rate, self.steps, self.decay))

    @cached_property
    def factors(self) -> Array:
        starts = np.linalg.norm(gradient(self.x, self.labels, np.zeros(self.shape)), axis=(1, 2))
        return batch_factor(self.limit, batch_spectrum(self.x), self.start_limit, starts)[:, None, None]

    @property
    def shape(self) -> tuple[int, int]:
        return self.x.shape[2], self.classes

    @property
    def drift(self) -> float:
        """`sum_t 2 q U c^(T - t)` for attackers of weight q."""
        fades = self.kept ** np.arange(self.rounds)
        return float(2.0 * self.weights[: self.attackers].sum() * self.cap * fades.sum())

    def honest(self, start: Array) -> Array:
        """The centred residuals of honest training, (clients, features, classes); none is longer than the cap."""
        models, factors = np.broadcast_to(start, (len(self.x), *self.shape)), self.factors
        for _ in range(self.steps):
            step = factors * gradient(self.x, self.labels, models)
            assert self.bound is not None
            assert (np.linalg.norm(step, axis=(1, 2)) <= self.bound * (1.0 + 1e-12)).all()
            models = (1.0 - self.rate * self.decay) * models - self.rate * step
        residuals: Array = models - self.kept * start
        assert (np.linalg.norm(residuals, axis=(1, 2)) <= self.cap * (1.0 + 1e-12)).all()
        return residuals

    def following(self, start: Array, message: Array) -> Array:
        """The next model if all attackers submit this residual, capped."""
        residuals = self.honest(start)
        residuals[: self.attackers] = message * (self.cap / np.linalg.norm(message))
        model: Array = self.kept * start + np.tensordot(self.weights, residuals, axes=1)
        return model


def adversarial_gap(federation: Federation, towards: tuple[int, int] | None = None) -> tuple[float, Array, float]:
    """How far two worlds end apart whose attackers push in opposite directions, both models, and the bound.

    The direction is that of the gap they have, or always that of one weight.
    """
    models = np.zeros((2, *federation.shape))
    direction = federation.generator.normal(size=federation.shape)
    if towards is not None:
        direction = np.zeros(federation.shape)
        direction[towards] = 1.0
    for _ in range(federation.rounds):
        models = np.stack(
            [federation.following(model, sign * direction) for model, sign in zip(models, (1, -1), strict=True)]
        )
        if towards is None and federation.generator.uniform() < 0.8:
            direction = models[0] - models[1]
    return float(np.linalg.norm(models[0] - models[1])), models, federation.drift
