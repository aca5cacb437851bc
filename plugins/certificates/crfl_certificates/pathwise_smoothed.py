"""The same-noise certificate of smoothed models, by their votes."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from crfl_certificates.capped import PathwiseCertificate
from crfl_core.extend import (
    Check,
    DriftBound,
    ExactVotes,
    Guarantee,
    Ledger,
    Level,
    Threat,
    VoteRequest,
    Votes,
    VoteSettings,
    assumption_checks,
    build_guarantee,
    formulas,
    pathwise_checks,
    smoothed_thresholds,
    vote_bounds,
    vote_count_request,
)


class PathwiseSmoothed(PathwiseCertificate):
    """Same noise, same batches, no attack: the vote over test-time noise would have been the same.

    Sound for softmax regression: the drift of the attack shifts the centre of the Gaussian vote, and below
    `sigma_T mu*` no shift changes its winner. Exact votes need no Monte Carlo and no error level.
    """

    method: Literal["exact", "monte-carlo"] = Field("exact", description="quadrature, or votes of noisy copies")

    def request(self, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:  # noqa: ARG002
        """Request exact probabilities, or counts of noisy copies."""
        noise = ledger.facts.test_noise_std if settings.noise_std is None else settings.noise_std
        if self.method == "exact" and ledger.facts.model_facts.linear and noise > 0:
            return VoteRequest("exact", noise_std=noise)
        return vote_count_request(settings, noise)

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        """Return the pathwise checks.

        Sampled votes also need noise that attackers did not know.
        """
        checks = pathwise_checks(ledger, threat, ledger.facts.rounds, observed=True)
        return checks if self.method == "exact" else (*checks, assumption_checks.check_vote_secrecy(ledger))

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        """Convert votes to drifts and drifts to radii."""
        scenario = DriftBound.of(ledger, threat, ledger.facts.rounds, observed=True)
        if isinstance(votes, ExactVotes):
            threshold = smoothed_thresholds(ledger, votes)
            first = votes.winner
            p_a = np.exp(votes.log_p_a)
            p_b = np.exp(votes.log_p_b)
        else:
            first, p_a, p_b = vote_bounds(votes)
            threshold = votes.request.noise_std * formulas.gaussian_threshold(p_a, p_b)
        return build_guarantee(scenario, level, first, np.asarray(threshold), p_a, p_b)
