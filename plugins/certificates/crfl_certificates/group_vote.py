"""The vote of groups that train models of their own: clients that do anything, in every round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_certificates.capped import UPDATE_CAP
from crfl_certificates.grouped import GroupCertificate, check_disjoint, guarantee_of_winner, isolation_checks
from crfl_core.extend import (
    Check,
    CollectiveGuarantee,
    DriftBound,
    GroupFacts,
    GroupRankings,
    GroupVotes,
    Guarantee,
    Ledger,
    Level,
    Threat,
    VoteRequest,
    Votes,
    VoteSettings,
    bias_input,
    build_guarantee,
    formulas,
    margin_thresholds,
    pathwise_checks,
)

Array = NDArray[np.float64]

CONDORCET_RULE = Check(
    "voting rule is fixed before round 1",
    "held",
    "Condorcet, in the ledger: the winner beats every other class; without one, radius 0",
    "one rule for all inputs",
)


class GroupVote(GroupCertificate):
    """Every group of clients has a model of its own, so a client reaches only the votes of its groups.

    Sound for any model, rule and attack, in every round, forward and backward. Exact for disjoint groups that vote by
    plurality: one client more can be enough. With `refine`, groups whose own prediction is certified against some of
    their members count for more. In a run with groups.voting = 'condorcet' it certifies the class that beats every
    other one in the groups' rankings.
    """

    statement: ClassVar = "pathwise"
    votings: ClassVar[tuple[str, ...]] = ("plurality", "condorcet")

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

    def stages_to_add(self, cap_updates: bool | None) -> tuple[Mapping[str, Any], ...]:
        """Return the update cap for groups that certify themselves.

        The cap is left out unless `server.cap_updates` asks for it.
        """
        return (UPDATE_CAP,) if self.refine and cap_updates else ()

    def request(self, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:  # noqa: ARG002
        """Request the vote of every group.

        If groups vote by pairs, request the ranking of all classes of each group.
        """
        return VoteRequest("group-rankings" if votes_by_pairs(ledger) else "groups")

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        """Check that nothing crosses groups, and with `refine` the groups' own certificates."""
        rule = (CONDORCET_RULE,) if votes_by_pairs(ledger) else ()
        checks = (*rule, self.check_memberships(ledger), *isolation_checks(ledger), *self.check_candidates(threat))
        return (*checks, *groups_own_checks(ledger, threat)) if self.refine else checks

    def check_memberships(self, ledger: Ledger) -> Check:
        """Check that groups are disjoint if they certify themselves.

        Otherwise clients may be in several groups.
        """
        groups = ledger.facts.groups
        assert groups is not None
        if groups.by != "subsets":
            return check_disjoint(ledger)
        if self.refine:
            remedy = "set refine = false, or groups.by = 'deal'"
            return Check("groups are disjoint", "failed", "random subsets", "no client in two groups", remedy)
        most = int(membership_table(groups, None).sum(axis=0).max())
        return Check("every group of a client counts", "held", f"a client is in up to {most} groups")

    def check_candidates(self, threat: Threat) -> tuple[Check, ...]:
        """Declare that only the named candidates attack.

        The check is left out if all clients count as candidates.
        """
        if self.candidates == "all" or isinstance(threat.clients, int):
            return ()
        found = f"clients {', '.join(map(str, threat.clients))}"
        return (Check("only the named clients attack", "declared", found, "that no other client attacks"),)

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:  # noqa: ARG002
        """Return how many clients it takes to change the winner, less one."""
        if votes_by_pairs(ledger):
            return self.certify_pairs(ledger, votes.expect(GroupRankings), threat)
        cast = votes.expect(GroupVotes)
        groups = ledger.facts.groups
        assert groups is not None
        named = None if self.candidates == "all" or isinstance(threat.clients, int) else threat.clients
        classes = ledger.facts.classes
        able = count_candidates(groups, named)
        counts = formulas.vote_counts(cast.ballots, classes, groups.votes)
        if groups.by == "subsets":
            stood = formulas.membership_radius(cast.ballots, classes, membership_table(groups, named), groups.votes)
        elif groups.weights is not None:  # groups that certify themselves count as one client each here
            stood = formulas.weighted_group_radius(cast.ballots, classes, groups.weights, able > 0)
        else:
            own = certify_groups(ledger, cast, threat) if self.refine else 0.0
            costs = formulas.group_costs(own, able)
            stood = formulas.group_radius(cast.ballots, classes, np.broadcast_to(costs, cast.ballots.shape))
        return self.guarantee_from_counts(counts, np.minimum(stood, float(len(candidates_of(groups, named)))))

    def certify_pairs(self, ledger: Ledger, cast: GroupRankings, threat: Threat) -> Guarantee:
        """Return how many clients the winner of a Condorcet vote tolerates.

        It tolerates clients as long as it beats every other class. With `refine` a group whose own certificate says
        that it predicts the winner also prefers it to all others; any other preference costs one client. `p_a` is the
        share of votes that prefer the winner to its closest rival.
        """
        groups = ledger.facts.groups
        assert groups is not None
        named = None if self.candidates == "all" or isinstance(threat.clients, int) else threat.clients
        able = count_candidates(groups, named)
        winner = formulas.condorcet_vote(cast.ranks, groups.votes).winner
        if self.refine and groups.by != "subsets" and groups.weights is None:
            own = np.where(cast.ballots == winner[:, None], certify_groups(ledger, cast, threat), 0.0)
            stood = formulas.condorcet_cost_radius(cast.ranks, formulas.group_costs(own, able))
        else:
            stood = formulas.condorcet_radius(cast.ranks, units_of(groups, named), groups.votes)
        share = formulas.condorcet_shares(cast.ranks, groups.votes)
        return guarantee_of_winner(
            winner, share, 1.0 - share, np.minimum(stood, float(len(candidates_of(groups, named))))
        )

    def certify_together(
        self, ledger: Ledger, votes: Votes, threat: Threat, clients: tuple[int, ...]
    ) -> CollectiveGuarantee | None:
        """Return how many samples stay right, whichever clients are malicious.

        The result is None if groups certify themselves. Then a client need not reach a vote, and the statement is about
        the rounds of the threat.
        """
        if self.refine:
            return None
        groups = ledger.facts.groups
        assert groups is not None
        named = None if self.candidates == "all" or isinstance(threat.clients, int) else threat.clients
        reached = units_of(groups, named)
        if votes_by_pairs(ledger):
            ranks = votes.expect(GroupRankings).ranks
            leads = formulas.condorcet_leads(ranks, votes.labels, reached, groups.votes)
        else:
            ballots = votes.expect(GroupVotes).ballots
            leads = formulas.plurality_leads(ballots, votes.labels, ledger.facts.classes, reached, groups.votes)
        counts = [formulas.collective_count(leads, number) for number in clients]
        # Shared groups count twice, and a class that loses a duel may win all the same: both give a lower bound.
        attainable = groups.by != "subsets" and not votes_by_pairs(ledger)
        return CollectiveGuarantee(
            clients,
            tuple(count.right for count in counts),
            tuple(count.exact and attainable for count in counts),
        )


def votes_by_pairs(ledger: Ledger) -> bool:
    """Return whether the groups of a run vote by pairs of classes."""
    return ledger.facts.groups is not None and ledger.facts.groups.voting == "condorcet"


def units_of(groups: GroupFacts, named: tuple[int, ...] | None) -> NDArray[np.bool_]:
    """Return which groups each attacker reaches, (G, U).

    With random subsets, an attacker reaches all groups of one client. Otherwise it reaches any one group.
    """
    reached = membership_table(groups, named)
    if groups.by == "subsets":
        return reached
    return np.eye(len(reached), dtype=np.bool_)[:, reached.any(axis=1)]  # clients of a group reach no more than it


def candidates_of(groups: GroupFacts, named: tuple[int, ...] | None) -> list[int]:
    """Return the clients that may attack and are in a group.

    If `named` is None, all clients may attack.
    """
    members = {client for group in groups.members for client in group}
    return sorted(members if named is None else members & set(named))


def membership_table(groups: GroupFacts, named: tuple[int, ...] | None) -> NDArray[np.bool_]:
    """Return which candidates are in each group, (G, N).

    Candidates are the clients that may attack.
    """
    return np.array([np.isin(candidates_of(groups, named), members) for members in groups.members])


def count_candidates(groups: GroupFacts, named: tuple[int, ...] | None) -> NDArray[np.int64]:
    """Return how many clients of each group may attack, (G,).

    These are all clients, or the named ones.
    """
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
    """Return whether a group's client-level certificate is refused.

    With `backward` the question is about the whole certificate, otherwise about its forward direction.
    """
    return any(
        check.status == "failed" and (check.direction is None or not backward) for check in client_checks(own, threat)
    )


def client_checks(own: Ledger, threat: Threat) -> tuple[Check, ...]:
    """Return the checks of one group's certificate that concern the client level."""
    checks = pathwise_checks(own, threat, own.facts.rounds, observed=True)
    return tuple(check for check in checks if check.level in (None, "client"))


def groups_own_checks(ledger: Ledger, threat: Threat) -> Iterator[Check]:
    """Yield what the groups' own certificates declare.

    Also yield whether they hold for attacks that may come.
    """
    lost = 0
    declared: dict[str, Check] = {}
    for group in range(ledger.facts.models):
        checks = client_checks(ledger.of_group(group), threat)
        failed = [check for check in checks if check.status == "failed"]
        lost += bool(failed)
        if any(check.direction is None for check in failed):
            continue  # a group that does not certify itself counts as one client and assumes nothing
        for check in checks:
            if check.status == "declared" and check.direction is None:
                declared.setdefault(check.name, check)
    yield from declared.values()
    yield Check(
        "groups certify themselves forward",
        "failed" if lost else "held",
        f"{lost} of {ledger.facts.models} groups do not" if lost else "all groups do",
        "the forward reading in every group",
        "set refine = false, or server.cap_updates = true" if lost else "",
        direction="forward",
    )
