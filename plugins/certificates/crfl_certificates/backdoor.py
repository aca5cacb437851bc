"""The whole backdoor: malicious clients in every round of training, and a trigger on the test input."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from crfl_certificates.grouped import GroupCertificate, check_disjoint, isolation_checks
from crfl_core.extend import (
    Check,
    GroupDistances,
    Guarantee,
    Ledger,
    Level,
    Threat,
    VoteRequest,
    Votes,
    VoteSettings,
    formulas,
)


class Backdoor(GroupCertificate):
    """The threat's clients do anything in every round, and a trigger changes the test input: how large may it be?

    The vote of groups with linear models predicts the same for the clean system on an input and for the attacked system
    on every input at most the radius away, in scaled input space. Groups whose decision boundary is nearer count as
    changed by the trigger, and each malicious client changes one more. Needs feature maps with a Lipschitz constant.
    """

    statement: ClassVar = "pathwise"
    levels_offered: ClassVar[tuple[Level, ...]] = ("backdoor",)

    def request(self, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:  # noqa: ARG002
        """Request every group's vote and the feature distance that changes it."""
        return VoteRequest("group-distances")

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:  # noqa: ARG002
        """Check that groups are isolated and that features and logits are bounded.

        The bounds hold for inputs that an attacker moves.
        """
        facts = ledger.facts
        weighted = facts.groups is not None and facts.groups.weights is not None
        lipschitz = facts.feature_lipschitz
        return (
            check_disjoint(ledger),
            *isolation_checks(ledger),
            Check(
                "every group has one vote",
                "failed" if weighted else "held",
                "groups have weights" if weighted else "one vote each",
                "equal groups",
                "remove groups.weights" if weighted else "",
            ),
            Check(
                "models are linear",
                "held" if facts.model_facts.linear else "failed",
                facts.model,
                "a linear model behind the feature maps",
                "" if facts.model_facts.linear else "set model.type = 'softmax'",
            ),
            Check(
                "feature maps are Lipschitz",
                "failed" if lipschitz is None else "declared",
                "no constant"
                if lipschitz is None
                else ", declared by ".join((f"constant {lipschitz:.4g}, computed with rounding", *facts.foreign_maps)),
                "a Lipschitz constant",
                "use 'unit-ball' instead of 'unit-sphere', give 'whiten' a radius, leave out 'deskew'"
                if lipschitz is None
                else "",
            ),
        )

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:  # noqa: ARG002
        """Return the largest norm of a trigger that the winner withstands.

        The threat's clients attack as well.
        """
        cast = votes.expect(GroupDistances)
        lipschitz = ledger.facts.feature_lipschitz
        assert lipschitz is not None
        clients = threat.clients if isinstance(threat.clients, int) else len(threat.clients)
        with np.errstate(divide="ignore", invalid="ignore"):
            distances = (
                cast.distances / (lipschitz * (1.0 + 1e-12))
                if lipschitz > 0
                else np.where(cast.distances > 0, np.inf, 0.0)
            )
        radius = formulas.trigger_radius(cast.ballots, distances, ledger.facts.classes, clients)
        counts = formulas.vote_counts(cast.ballots, ledger.facts.classes)
        guarantee = self.guarantee_from_counts(counts, radius)
        return Guarantee(**{**vars(guarantee), "count": None})
