"""The same-noise certificate of linear models, by their margins."""

from __future__ import annotations

import numpy as np

from crfl_certificates.capped import PathwiseCertificate
from crfl_core.extend import (
    Check,
    DriftBound,
    Guarantee,
    Ledger,
    Level,
    LogitVotes,
    Threat,
    VoteRequest,
    Votes,
    VoteSettings,
    bias_input,
    build_guarantee,
    margin_thresholds,
    pathwise_checks,
)


class PathwiseLinear(PathwiseCertificate):
    """Same noise, same batches, no attack: the linear model would have predicted the same. By margins, without votes.

    Sound for softmax regression: rounds are non-expansive, so the parameters of the two runs differ by at most the
    drift of the attack, and no logit overtakes the first while that is below `margin / (sqrt 2 ||x||)`.
    """

    def request(self, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:  # noqa: ARG002
        """Request the logits of the final model."""
        return VoteRequest("logits")

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        """Return the checks of every pathwise certificate."""
        return pathwise_checks(ledger, threat, ledger.facts.rounds, observed=True)

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        """Convert margins to drifts and drifts to radii."""
        logits = votes.expect(LogitVotes).logits
        norms = np.hypot(votes.input_norms, bias_input(ledger))
        threshold = margin_thresholds(ledger, logits, norms)
        unknown = np.full(len(norms), np.nan)
        scenario = DriftBound.of(ledger, threat, ledger.facts.rounds, observed=True)
        return build_guarantee(scenario, level, logits.argmax(axis=1), threshold, unknown, unknown)
