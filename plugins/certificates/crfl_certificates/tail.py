"""The certificate of votes over continuations with fresh noise."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_certificates.pathwise_linear import pathwise_checks
from crfl_core.extend import (
    Certificate,
    Check,
    Guarantee,
    Ledger,
    Level,
    Scenario,
    Threat,
    VoteRequest,
    Votes,
    VoteSettings,
    assumptions,
    bounds_of,
    formulas,
    guarantee,
)


class Resampled(Certificate):
    """What certificates with fresh noise have in common: continuations of the run that vote, one vote each."""

    levels_offered: ClassVar[tuple[Level, ...]] = ("feature", "sample", "client")
    statement: ClassVar = "tail"

    continuations: int = Field(300, ge=1, description="independent continuations that vote, one vote each")
    selection: int = Field(60, ge=1, description="further continuations that only select the class")

    def start(self, attacked: tuple[int, ...]) -> int:
        """The round whose noise is the first to be drawn again."""
        return max(attacked)

    def resampled_rounds(self, attacked: tuple[int, ...]) -> tuple[int, ...]:
        """The one from which continuations start."""
        return (self.start(attacked),)

    def request(self, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:
        """Continuations, one vote each."""
        return VoteRequest(
            "continuations",
            models=self.continuations,
            noise_std=ledger.facts.test_noise_std if settings.noise_std is None else settings.noise_std,
            selection_models=self.selection if settings.bound == "two-stage" else 0,
            resample_from=self.start(threat.rounds),
        )

    def bounds(self, votes: Votes) -> formulas.Bounds:
        """Bounds from independent votes."""
        return bounds_of(votes)


class Tail(Resampled):
    """Noise drawn again from some round on: the vote of all continuations would have been the same without the attack.

    Sound for softmax regression and attacks up to that round. Every round of fresh noise hides more of the drift:
    without contraction, a drift D costs `mu = D / sqrt(sum sigma_t^2)` over the rounds whose noise is drawn again.
    """

    resample_from: int | None = Field(
        None, ge=1, description="round from whose noise on everything is drawn again; unset: the last attacked one"
    )

    def start(self, attacked: tuple[int, ...]) -> int:
        """The round whose noise is the first to be drawn again."""
        return max(attacked) if self.resample_from is None else self.resample_from

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        """As pathwise; the attack must come before the fresh noise."""
        common = [one for one in pathwise_checks(ledger, threat) if one.name != assumptions.ROUNDS]
        start = self.start(threat.rounds)
        return (
            *common,
            assumptions.rounds_exist(ledger, threat, start),
            assumptions.model_kept(ledger, start),
            assumptions.independent_votes(),
        )

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        """Votes as a budget, the budget as a drift of the stored model, the drift as a radius."""
        first, p_a, p_b = self.bounds(votes)
        start = votes.request.resample_from
        assert start is not None
        scenario = Scenario(ledger, threat, start)
        noises = fresh_noise(ledger, start, votes.request.noise_std)
        per_unit = formulas.budget_per_unit_drift(noises, scenario.lipschitz[start - 1 :])[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            threshold = formulas.gaussian_threshold(p_a, p_b) / per_unit
        return guarantee(scenario, level, first, np.asarray(threshold), p_a, p_b)


def fresh_noise(ledger: Ledger, start: int, test_noise: float) -> NDArray[np.float64]:
    """The noise of every round from `start` on; in the final round it is the test noise."""
    return np.array([record.noise_std for record in ledger.rounds[start - 1 : -1]] + [test_noise])
