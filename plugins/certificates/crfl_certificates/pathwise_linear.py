"""The same-noise certificate of linear models, by their margins."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

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
    bias_input,
    formulas,
    guarantee,
)


class PathwiseLinear(Certificate):
    """Same noise, same batches, no attack: the linear model would have predicted the same. By margins, without votes.

    Sound for softmax regression: rounds are non-expansive, so the parameters of the two runs differ by at most the
    drift of the attack, and no logit overtakes the first while that is below `margin / (sqrt 2 ||x||)`.
    """

    levels_offered: ClassVar[tuple[Level, ...]] = ("feature", "sample", "client")
    statement: ClassVar = "pathwise"

    def request(self, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:  # noqa: ARG002
        """The logits of the final model."""
        return VoteRequest("logits")

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        """The checks of every pathwise certificate."""
        return pathwise_checks(ledger, threat)

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        """Margins as drifts, drifts as radii."""
        assert votes.logits is not None
        norms = np.hypot(votes.input_norms, bias_input(ledger))
        threshold = formulas.margin_threshold(votes.logits, norms)
        unknown = np.full(len(norms), np.nan)
        scenario = Scenario(ledger, threat, ledger.facts.rounds)
        return guarantee(scenario, level, votes.logits.argmax(axis=1), threshold, unknown, unknown)


def pathwise_checks(ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
    """What makes the parameters of two runs with the same noise stay together."""
    return (
        assumptions.softmax_regression(ledger),
        assumptions.non_expansive(ledger, threat),
        assumptions.inputs_bounded(ledger, threat),
        assumptions.fixed_weights(ledger),
        assumptions.participation_fixed(ledger, threat),
        assumptions.rounds_exist(ledger, threat, ledger.facts.rounds),
        assumptions.attack_bounded(ledger, threat),
        assumptions.public_preprocessing(ledger),
        assumptions.seeded_streams(),
        assumptions.feature_map_lipschitz(ledger),
    )
