"""Server optimisers: a fixed rate, momentum, FedDyn, and Adagrad, Adam and Yogi as in Reddi et al. (2021)."""

from __future__ import annotations

from abc import abstractmethod

from pydantic import Field
from torch import Tensor

from crfl_core.extend import FixedRate, OptimiserResult, Round, RoundFacts, ServerOptimiser, State


class Rate(FixedRate):
    """A fixed share of the aggregate: `w_t = w + eta_t aggregate`, with `eta_t = learning_rate decay^(t - 1)`.

    With rates of at most 1 the model becomes a mean of itself and of what plain averaging would make of it, so every
    certificate holds, with all weights multiplied by the rate.
    """

    learning_rate: float = Field(1.0, gt=0, description="eta of the first round; certificates need at most 1")
    decay: float = Field(1.0, gt=0, le=1, description="what the rate is multiplied by from round to round")

    def rate(self, facts: RoundFacts) -> float:
        """Return the rate of this round."""
        return self.learning_rate * self.decay ** (facts.number - 1)


class Momentum(ServerOptimiser):
    """Federated averaging with momentum of the server, FedAvgM (Hsu et al., 2019).

    `v_t = beta v_(t-1) + aggregate_t` with `v_0 = 0`, and `w_t = w + eta v_t`. So an update of round s still moves the
    model in round t, with `eta beta^(t - s)` times its weight, and in the long run with `eta / (1 - beta)` times it.
    """

    learning_rate: float = Field(1.0, gt=0, description="eta of the server")
    beta: float = Field(0.9, ge=0, lt=1, description="what is left of the velocity of the round before")

    def step(self, aggregate: Tensor, current: Round, state: State) -> OptimiserResult:  # noqa: ARG002
        """Scale the aggregate by the rate.

        The remainder of earlier aggregates is the offset.
        """
        kept = self.beta * state["velocity"].to(aggregate) if state else aggregate.new_zeros(aggregate.shape)
        return OptimiserResult(self.learning_rate, self.learning_rate * kept, {"velocity": kept + aggregate})


class FedDyn(ServerOptimiser):
    """The server's part of FedDyn (Acar et al., 2021, Algorithm 1): use it with `training.algorithm = "feddyn"`.

    With the mean update D_t of the participants, a share f of all clients, `h_t = h_(t-1) - alpha f D_t` and
    `w_t = w + D_t - h_t / alpha`. The server keeps `h_t / alpha`, in which no alpha is left. D_t is the plain mean of
    the participants: use `fedavg` with clients of equal size.
    """

    participation: float = Field(1.0, gt=0, le=1, description="share of clients in a round: training.participation")

    def step(self, aggregate: Tensor, current: Round, state: State) -> OptimiserResult:  # noqa: ARG002
        """Scale the aggregate by 1 + f.

        The sum of earlier aggregates is the offset.
        """
        before = state["shift"].to(aggregate) if state else aggregate.new_zeros(aggregate.shape)
        share = self.participation
        return OptimiserResult(1.0 + share, -before, {"shift": before - share * aggregate})


class Adaptive(ServerOptimiser):
    """Adaptive optimisers: `w_t = w + eta m_t / (sqrt(v_t) + tau)`, in every parameter.

    With the aggregate `D_t` of a round, `m_t = beta_1 m_(t-1) + (1 - beta_1) D_t` from `m_0 = 0`, and v_t begins at
    `v_0 = tau^2`. There is no correction of the first rounds.
    """

    learning_rate: float = Field(0.1, gt=0, description="eta of the server: about how far a parameter moves in a round")
    tau: float = Field(1e-3, gt=0, description="degree of adaptivity: the larger, the more like plain averaging")

    @abstractmethod
    def momentum(self) -> float:
        """Return beta_1."""

    @abstractmethod
    def second_moment(self, before: Tensor, squares: Tensor) -> Tensor:
        """Return v_t from v_(t-1) and the squares of the aggregate."""

    def step(self, aggregate: Tensor, current: Round, state: State) -> OptimiserResult:  # noqa: ARG002
        """Return the scale and the offset that m_t gives.

        The scale is the share of the aggregate, the offset is that of earlier rounds.
        """
        before = state["first"].to(aggregate) if state else aggregate.new_zeros(aggregate.shape)
        second = state["second"].to(aggregate) if state else aggregate.new_full(aggregate.shape, self.tau**2)
        second = self.second_moment(second, aggregate.square())
        beta = self.momentum()
        rates = self.learning_rate / (second.sqrt() + self.tau)
        first = beta * before + (1.0 - beta) * aggregate
        return OptimiserResult((1.0 - beta) * rates, beta * rates * before, {"first": first, "second": second})


class Adagrad(Adaptive):
    """Adagrad on the server, FedAdagrad (Reddi et al., 2021): `v_t = v_(t-1) + D_t^2`.

    With the aggregate `D_t` of a round, `m_t = beta_1 m_(t-1) + (1 - beta_1) D_t` and
    `w_t = w + eta m_t / (sqrt(v_t) + tau)`, from `m_0 = 0` and `v_0 = tau^2`.
    """

    beta_1: float = Field(0.0, ge=0, lt=1, description="share of earlier aggregates in the direction")

    def momentum(self) -> float:
        """Return `beta_1`; the paper has none."""
        return self.beta_1

    def second_moment(self, before: Tensor, squares: Tensor) -> Tensor:
        """Return the sum of all squares."""
        return before + squares


class Adam(Adaptive):
    """Adam on the server, FedAdam (Reddi et al., 2021): `v_t = beta_2 v_(t-1) + (1 - beta_2) D_t^2`.

    With the aggregate `D_t` of a round, `m_t = beta_1 m_(t-1) + (1 - beta_1) D_t` and
    `w_t = w + eta m_t / (sqrt(v_t) + tau)`, from `m_0 = 0` and `v_0 = tau^2`, without correction of the first rounds.
    """

    beta_1: float = Field(0.9, ge=0, lt=1, description="share of earlier aggregates in the direction")
    beta_2: float = Field(0.99, ge=0, lt=1, description="share of earlier squares in the second moment")

    def momentum(self) -> float:
        """Return `beta_1`."""
        return self.beta_1

    def second_moment(self, before: Tensor, squares: Tensor) -> Tensor:
        """Return a moving average of squares."""
        return self.beta_2 * before + (1.0 - self.beta_2) * squares


class Yogi(Adam):
    """Yogi on the server, FedYogi (Reddi et al., 2021): `v_t = v_(t-1) - (1 - beta_2) D_t^2 sign(v_(t-1) - D_t^2)`.

    Everything else as in `adam`. The second moment moves by no more than a share of the squares, so large ones of
    the past are forgotten slowly.
    """

    def second_moment(self, before: Tensor, squares: Tensor) -> Tensor:
        """Move toward the squares by a share of them."""
        return before - (1.0 - self.beta_2) * squares * (before - squares).sign()
