"""The vote of groups that train models of their own: clients that do anything, in every round."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_certificates.grouped import GroupCertificate, isolation_checks
from crfl_core.extend import (
    Check,
    DriftBound,
    GroupFacts,
    GroupVotes,
    Guarantee,
    Ledger,
    Level,
    Threat,
    Votes,
    bias_input,
    build_guarantee,
    formulas,
    margin_thresholds,
    pathwise_checks,
)

Array = NDArray[np.float64]


class GroupVote(GroupCertificate):
    """Clients are in disjoint groups, each with a model of its own; so a client reaches one vote, whatever it does.

    Sound for any model, rule and attack, in every round, forward and backward, and exact: one client more can be
    enough. With `refine`, groups whose own prediction is certified against some of their members count for more.
    """

    statement: ClassVar = "pathwise"

    candidates: Literal["all", "named"] = Field(
        "all", description="who may attack: all clients, or only those that threat.clients names"
    )
    refine: bool = Field(
        False,
        description="let groups of a linear model certify themselves, which restricts the statement to the threat's "
        "rounds and to capped updates",
    )

    def round_scope(self) -> Literal["stated", "every"]:
        """Return "every", unless groups certify themselves against the threat."""
        return "stated" if self.refine else "every"

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        """Check that nothing crosses groups, and with `refine` the groups' own certificates."""
        disjoint = ledger.facts.groups is not None and ledger.facts.groups.by != "subsets"
        checks = (
            Check(
                "groups are disjoint",
                "held" if disjoint else "failed",
                "every client is in one" if disjoint else "random subsets",
                "no client in two groups",
                "" if disjoint else "use the certificate 'ensemble', or groups.by = 'deal'",
            ),
            *isolation_checks(ledger),
        )
        return (*checks, check_forward_reading(ledger, threat)) if self.refine else checks

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:  # noqa: ARG002
        """Return how many clients it takes to change the winner, less one."""
        cast = votes.expect(GroupVotes)
        groups = ledger.facts.groups
        assert groups is not None
        named = None if self.candidates == "all" or isinstance(threat.clients, int) else threat.clients
        classes = ledger.facts.classes
        able = count_candidates(groups, named)
        counts = formulas.vote_counts(cast.ballots, classes, groups.votes)
        if groups.weights is not None:  # groups that certify themselves count as one client each here
            stood = formulas.weighted_group_radius(cast.ballots, classes, groups.weights, able > 0)
        else:
            own = certify_groups(ledger, cast, threat) if self.refine else 0.0
            costs = formulas.group_costs(own, able)
            stood = formulas.group_radius(cast.ballots, classes, np.broadcast_to(costs, cast.ballots.shape))
        return self.guarantee_from_counts(counts, np.minimum(stood, float(able.sum())))


def count_candidates(groups: GroupFacts, named: tuple[int, ...] | None) -> NDArray[np.int64]:
    """Return how many clients of each group may attack, (G,): all, or the named ones."""
    return np.array([len(members if named is None else set(members) & set(named)) for members in groups.members])


def certify_groups(ledger: Ledger, cast: GroupVotes, threat: Threat) -> Array:
    """Return how many of its members each group's prediction tolerates, (m, G).

    It is 0 where the group's certificate is refused.
    """
    stood = np.zeros(cast.ballots.shape)
    unknown = np.full(len(stood), np.nan)
    for group in range(ledger.facts.models):
        own = ledger.of_group(group)
        if group in ledger.failed_groups or refuses_level(own, threat, backward=True):
            continue
        norms = np.hypot(cast.input_norms, bias_input(own))
        pair = np.stack([cast.gaps[:, group], np.zeros(len(norms))], axis=1)  # all that a margin is made of
        scenario = DriftBound(own, threat, own.facts.rounds, observed=True)
        answer = build_guarantee(
            scenario, "client", cast.ballots[:, group], margin_thresholds(own, pair, norms), unknown, unknown
        )
        stood[:, group] = np.nan_to_num(answer.radius, posinf=float(own.facts.clients))
    return stood


def refuses_level(own: Ledger, threat: Threat, *, backward: bool) -> bool:
    """Return whether a group's certificate at the client level is refused in one direction.

    `backward` asks about the whole certificate, otherwise about the forward direction.
    """
    checks = pathwise_checks(own, threat, own.facts.rounds, observed=True)
    failed = [check for check in checks if check.status == "failed" and check.level in (None, "client")]
    return any(check.direction is None for check in failed) if backward else bool(failed)


def check_forward_reading(ledger: Ledger, threat: Threat) -> Check:
    """Check that the groups' certificates also hold for attacks that may come."""
    lost = [
        group for group in range(ledger.facts.models) if refuses_level(ledger.of_group(group), threat, backward=False)
    ]
    return Check(
        "groups certify themselves forward",
        "failed" if lost else "held",
        f"{len(lost)} of {ledger.facts.models} groups do not" if lost else "all groups do",
        "the forward reading in every group",
        "set refine = false, or server.cap_updates = true" if lost else "",
        direction="forward",
    )
