"""Algorithms of local training: plain SGD as in the paper, FedProx, momentum and Adam."""

from __future__ import annotations

import torch
from pydantic import Field

from crfl_core.extend import LocalAlgorithm, LocalStep, ProximalAlgorithm, State, StepDirection


class Sgd(ProximalAlgorithm):
    """Plain mini-batch SGD, `w <- w - eta (g + lambda w)`: what every pathwise certificate stands on."""

    def proximal_weight(self) -> float:
        """Return 0: nothing pulls but the data and weight decay."""
        return 0.0


class FedProx(ProximalAlgorithm):
    """FedProx (Li et al., 2020): SGD on the local loss plus `mu/2 ||w - w_0||^2`, w_0 being the broadcast model.

    `w <- w - eta (g + lambda w + mu (w - w_0))`. Pathwise certificates hold with the contraction of such steps.
    """

    mu: float = Field(0.1, ge=0, description="weight of the pull toward the broadcast model")

    def proximal_weight(self) -> float:
        """Return `mu`."""
        return self.mu


class Momentum(LocalAlgorithm):
    """SGD with heavy-ball momentum (Polyak, 1964): `v <- beta v + g`, `w <- w - eta v`, with v = 0 in every round."""

    beta: float = Field(0.9, ge=0, lt=1, description="what a step keeps of the velocity before it")

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        """Return the velocity."""
        velocity = step.gradient if not state else self.beta * state["velocity"] + step.gradient
        return StepDirection(velocity, {"velocity": velocity})


class Adam(LocalAlgorithm):
    """Adam (Kingma & Ba, 2015) with its bias corrections; both averages begin anew in every round."""

    beta1: float = Field(0.9, ge=0, lt=1, description="what a step keeps of the mean of gradients")
    beta2: float = Field(0.999, ge=0, lt=1, description="what a step keeps of the mean of their squares")
    epsilon: float = Field(1e-8, gt=0, description="added to the root, against division by zero")

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        """Return `m / (sqrt(v) + epsilon)` with corrected averages m of gradients and v of squares."""
        gradient = step.gradient
        mean, square = (state.get(name, torch.zeros_like(gradient)) for name in ("mean", "square"))
        mean = self.beta1 * mean + (1.0 - self.beta1) * gradient
        square = self.beta2 * square + (1.0 - self.beta2) * gradient.square()
        corrected = mean / (1.0 - self.beta1**step.number)
        root = (square / (1.0 - self.beta2**step.number)).sqrt()
        return StepDirection(corrected / (root + self.epsilon), {"mean": mean, "square": square})
