"""The certificate of votes over continuations with fresh noise."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from crfl_certificates.resampled import ResampledCertificate, check_known_rounds, fresh_noise_stds
from crfl_core.extend import (
    Check,
    DriftBound,
    Guarantee,
    Ledger,
    Level,
    Threat,
    Votes,
    build_guarantee,
    formulas,
    pathwise_checks,
    vote_bounds,
)


class Tail(ResampledCertificate):
    """Noise drawn again from some round on: the vote of all continuations would have been the same without the attack.

    Sound for softmax regression and attacks up to that round. Every round of fresh noise hides more of the drift:
    without contraction, a drift D costs `mu = D / sqrt(sum sigma_t^2)` over the rounds whose noise is drawn again.
    """

    resample_from: int | None = Field(
        None, ge=1, description="round from whose noise on everything is drawn again; unset: the last attacked one"
    )

    def start(self, attacked: tuple[int, ...]) -> int:
        """Return the first round whose noise is drawn again."""
        return max(attacked) if self.resample_from is None else self.resample_from

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        """Return the pathwise checks; the attack must come before the fresh noise."""
        checks = pathwise_checks(ledger, threat, self.start(threat.rounds), observed=False)
        unknown = check_known_rounds(threat) if self.resample_from is None else ()
        return (*unknown, *checks, *self.vote_checks(ledger, threat))

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        """Convert votes to a radius, through a budget and a drift."""
        first, p_a, p_b = vote_bounds(votes)
        start = self.start(threat.rounds)
        scenario = DriftBound.of(ledger, threat, start)
        noises = fresh_noise_stds(ledger, start, votes.request.noise_std)
        per_unit = formulas.budget_per_unit_drift(noises, scenario.lipschitz[start - 1 :])[0]
        budget = np.maximum(0.0, formulas.gaussian_threshold(p_a, p_b) - scenario.rounding_budget(noises))
        with np.errstate(divide="ignore", invalid="ignore"):
            threshold = budget / per_unit
        return build_guarantee(scenario, level, first, np.asarray(threshold), p_a, p_b)
