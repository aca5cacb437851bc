"""Algorithms of local training: plain SGD as in the paper, FedProx, momentum, Adam, SCAFFOLD and FedDyn."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from crfl_core.extend import (
    LocalAlgorithm,
    LocalRound,
    LocalStep,
    ProximalAlgorithm,
    State,
    StatefulAlgorithm,
    StepDirection,
)


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
    """Adam (Kingma & Ba, 2015) with its bias corrections; both averages start from zero in every round."""

    beta1: float = Field(0.9, ge=0, lt=1, description="what a step keeps of the mean of gradients")
    beta2: float = Field(0.999, ge=0, lt=1, description="what a step keeps of the mean of their squares")
    epsilon: float = Field(1e-8, gt=0, description="added to the root, against division by zero")

    def direction(self, step: LocalStep, state: State) -> StepDirection:
        """Return `m / (sqrt(v) + epsilon)`.

        m and v are the corrected averages of gradients and of their squares.
        """
        gradient = step.gradient
        mean, square = (state.get(name, torch.zeros_like(gradient)) for name in ("mean", "square"))
        mean = self.beta1 * mean + (1.0 - self.beta1) * gradient
        square = self.beta2 * square + (1.0 - self.beta2) * gradient.square()
        corrected = mean / (1.0 - self.beta1**step.number)
        root = (square / (1.0 - self.beta2**step.number)).sqrt()
        return StepDirection(corrected / (root + self.epsilon), {"mean": mean, "square": square})


class Scaffold(StatefulAlgorithm):
    """SCAFFOLD (Karimireddy et al., 2020, Algorithm 1, option II): control variates against the drift of clients.

    `w <- w - eta (g - c_i + c)` with the client's variate c_i and their mean c over all clients, both zero at first.
    After the round `c_i <- c_i - c + (w_0 - w) / sum of eta`. The rate of the server is that of `server.optimiser`.
    """

    remembers: ClassVar[tuple[str, ...]] = ("variate",)

    def direction(self, step: LocalStep, state: State) -> StepDirection:  # noqa: ARG002
        """Correct the gradient by the difference of the variates."""
        return StepDirection(step.gradient - step.memory["variate"] + step.mean["variate"])

    def remember(self, finished: LocalRound) -> State:
        """Return the mean gradient of the round as the new variate.

        The gradient is taken without its correction.
        """
        before = finished.memory["variate"]
        moved = (finished.start - finished.parameters) / finished.distance
        return {"variate": torch.where(finished.distance > 0, before - finished.mean["variate"] + moved, before)}


class FedDyn(StatefulAlgorithm):
    """FedDyn (Acar et al., 2021, Algorithm 1), the clients' part: use it with `server.optimiser = "feddyn"`.

    Clients minimise `L_i(w) - <h_i, w> + alpha / 2 ||w - w_0||^2` by `w <- w - eta (g - h_i + alpha (w - w_0))`, where
    w_0 is the broadcast model. After the round `h_i <- h_i - alpha (w - w_0)`.
    """

    remembers: ClassVar[tuple[str, ...]] = ("slope",)

    alpha: float = Field(0.1, gt=0, description="weight of the dynamic regulariser")

    def direction(self, step: LocalStep, state: State) -> StepDirection:  # noqa: ARG002
        """Return the gradient of the regularised loss."""
        return StepDirection(step.gradient - step.memory["slope"] + self.alpha * (step.parameters - step.start))

    def remember(self, finished: LocalRound) -> State:
        """Return the slope of the client's loss where its training ended.

        The value is that slope only if the training has reached a minimum.
        """
        return {"slope": finished.memory["slope"] - self.alpha * (finished.parameters - finished.start)}
