"""A server optimiser for crfl."""

from __future__ import annotations

from crfl_core.extend import FixedRate, RoundFacts
from pydantic import Field


class MyPlugin(FixedRate):
    """Rate of the server that grows from round to round, up to 1.

    `w_t = w + min(1, t / rounds) aggregate` in round t. To look at the aggregate, or to remember earlier ones, derive
    from ServerOptimiser: certificates that need a plain step are refused then.
    """

    rounds: int = Field(5, ge=1, description="rounds until the rate is 1")

    def rate(self, facts: RoundFacts) -> float:
        """Return the rate of this round, from facts alone. Up to 1 all certificates hold."""
        return min(1.0, facts.number / self.rounds)
