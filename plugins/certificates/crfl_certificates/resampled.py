"""Base of the certificates whose votes draw noise again, by continuations of the run."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_certificates.capped import CappedCertificate
from crfl_core.extend import Check, Ledger, Threat, VoteRequest, VoteSettings, assumption_checks


class ResampledCertificate(CappedCertificate):
    """Base of certificates by the votes of continuations, one vote each."""

    statement: ClassVar = "tail"

    continuations: int = Field(300, ge=1, description="independent continuations that vote, one vote each")
    selection: int = Field(60, ge=1, description="further continuations that only select the class")

    def start(self, attacked: tuple[int, ...]) -> int:
        """Return the first round whose noise is drawn again."""
        return max(attacked)

    def rounds_to_resample(self, attacked: tuple[int, ...]) -> tuple[int, ...]:
        """Return the round from which continuations start."""
        return (self.start(attacked),)

    def request(self, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:
        """Request continuations, one vote each."""
        return VoteRequest(
            "continuations",
            models=self.continuations,
            noise_std=ledger.facts.test_noise_std if settings.noise_std is None else settings.noise_std,
            selection_models=self.selection if settings.bound == "two-stage" else 0,
            resample_from=self.start(threat.rounds),
        )

    def vote_checks(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        """Check that the votes of continuations bound probabilities."""
        return (
            assumption_checks.check_kept_model(ledger, self.start(threat.rounds)),
            assumption_checks.check_vote_independence(),
            assumption_checks.check_vote_secrecy(ledger),
        )


def check_known_rounds(threat: Threat) -> tuple[Check, ...]:
    """Refuse unknown attacked rounds.

    Noise is drawn again from the attacked round on.
    """
    if threat.attacked_rounds == len(threat.rounds):
        return ()
    required = "known rounds, because each possible one needs a stored model and continuations of its own"
    remedy = "use 'pathwise-linear' or 'pathwise-smoothed', or 'tail' with a resample_from that no attack comes after"
    return (Check("attacked rounds", "failed", threat.rounds_text, required, remedy),)


def fresh_noise_stds(ledger: Ledger, start: int, test_noise: float) -> NDArray[np.float64]:
    """Return the noise std of every round from `start` on.

    The last is the test noise.
    """
    return np.array([record.noise_std for record in ledger.rounds[start - 1 : -1]] + [test_noise])
