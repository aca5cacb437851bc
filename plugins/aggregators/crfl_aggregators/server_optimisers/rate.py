"""A rate of the server that nobody can influence."""

from __future__ import annotations

from pydantic import Field

from crfl_core.extend import FixedRate, RoundFacts


class Rate(FixedRate):
    """A fixed share of the aggregate: `w_t = w + eta_t aggregate`, with `eta_t = learning_rate decay^(t - 1)`.

    With rates of at most 1 the model becomes a mean of itself and of what plain averaging would make of it, so every
    certificate holds, with all weights multiplied by the rate.
    """

    learning_rate: float = Field(1.0, gt=0, description="eta of the first round; certificates need at most 1")
    decay: float = Field(1.0, gt=0, le=1, description="what the rate is multiplied by from round to round")

    def rate(self, facts: RoundFacts) -> float:
        """The rate of this round."""
        return self.learning_rate * self.decay ** (facts.number - 1)
