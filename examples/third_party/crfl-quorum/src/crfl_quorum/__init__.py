"""A certificate for crfl: groups of clients answer if enough of them agree, or not at all."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from crfl_core.extend import (
    ABSTAIN,
    Certificate,
    Check,
    GroupVotes,
    Guarantee,
    Ledger,
    Level,
    Threat,
    VoteRequest,
    Votes,
    VoteSettings,
    assumption_checks,
    formulas,
)
from numpy.typing import NDArray
from pydantic import Field

Array = NDArray[np.float64]
Whole = NDArray[np.int64]


class Quorum(Certificate):
    """The class for which more than a share of all groups vote is the answer; without such a class there is none.

    A client is in one group and each group trains a model of its own, so k clients change at most k votes, in whatever
    rounds they attack and whatever they submit. An answer stands them if it keeps its quorum; another class becomes the
    answer only if it gets one, which needs votes that it lacks, not only an advantage. As a quorum is more than half of
    the votes, no two classes can have it.
    """

    groups: ClassVar[bool] = True
    levels_offered: ClassVar[tuple[Level, ...]] = ("client",)
    statement: ClassVar = "pathwise"

    share: float = Field(0.5, ge=0.5, lt=1, description="an answer needs more than this share of the votes")
    may_fall_silent: bool = Field(
        False, description="an answer stands unless another takes its place: attackers may turn it into none"
    )

    def request(self, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:  # noqa: ARG002
        """Request the vote of every group."""
        return VoteRequest("groups")

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:  # noqa: ARG002 - attackers may do anything
        """Check that a client reaches one vote: only its own group's model depends on what it submits."""
        groups, facts = ledger.facts.groups, ledger.facts
        judged = facts.rejects or any(not record.accepted and record.failed is None for record in ledger.rounds)
        replaced = any(record.weights_from != "chain" for record in ledger.rounds)
        return (
            assumption_checks.build_check(
                "groups are disjoint",
                groups is not None and groups.by != "subsets",
                "no groups" if groups is None else f"groups.by = {groups.by!r}",
                "every client in one group",
                "set groups.by = 'deal'",
            ),
            assumption_checks.build_check(
                "nothing crosses groups",
                not judged and not replaced,
                "rounds are judged" if judged else "weights are replaced" if replaced else "each plays its own rounds",
                "no plugin that sees several groups",
                "remove the plugin that judges rounds or replaces weights",
            ),
            Check(
                "groups are fixed before round 1",
                "held",
                f"{facts.models} groups in the ledger",
                "members that no attack can choose",
                direction="forward",  # what makes the statement one about attacks that might come, too
            ),
            assumption_checks.check_preprocessing(ledger),
        )

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:  # noqa: ARG002
        """Return how many clients leave the answer as it is or, if it may fall silent, bring about no other."""
        cast, groups, classes = votes.expect(GroupVotes), ledger.facts.groups, ledger.facts.classes
        assert groups is not None
        weights = np.array(groups.votes)
        counts = formulas.vote_counts(cast.ballots, classes, groups.votes)
        needed = int(np.floor(self.share * weights.sum())) + 1
        first = counts.argmax(axis=1)
        answered = counts.max(axis=1) >= needed
        prices = np.broadcast_to(weights, cast.ballots.shape)
        stood = (
            others_unheard(cast.ballots, prices, counts, first, needed)
            if self.may_fall_silent
            else affordable(np.where(cast.ballots == first[:, None], prices, 0), counts.max(axis=1) - needed)
        )
        clients = np.where(answered, stood, np.nan)
        shares = np.sort(counts / weights.sum(), axis=1)
        with np.errstate(divide="ignore"):
            logs = np.log(clients)
        return Guarantee(
            prediction=np.where(answered, first, ABSTAIN),
            radius=clients,
            log_radius=logs,
            p_a=shares[:, -1],
            p_b=shares[:, -2],
            count=clients,
        )


def others_unheard(ballots: Whole, prices: Whole, counts: Whole, first: Whole, needed: int) -> Array:
    """Return how many groups can turn to the worst other class before it has `needed` votes, (m,)."""
    stood = np.full(len(ballots), np.inf)
    for other in range(counts.shape[1]):
        found = affordable(np.where(ballots == other, 0, prices), needed - 1 - counts[:, other])
        stood = np.where(first == other, stood, np.minimum(stood, found))
    return stood


def affordable(prices: Whole, budget: Whole) -> Array:
    """Return how many of the highest prices of each row, (m, G), the budget pays for, (m,)."""
    sums = np.cumsum(-np.sort(-prices, axis=1), axis=1)
    return (sums <= budget[:, None]).sum(axis=1).astype(np.float64)
