"""Models of random subsets of clients that vote: Ensemble FL, for comparison."""

from __future__ import annotations

from typing import ClassVar

from crfl_certificates.grouped import GroupCertificate, isolation_checks
from crfl_core.extend import Check, GroupVotes, Guarantee, Ledger, Level, Threat, Votes, formulas


class Ensemble(GroupCertificate):
    """What the models of all subsets of k clients would elect stands this number of clients (Cao et al., 2021).

    Only some of these models are trained; Clopper-Pearson bounds make up for the others, with probability 1 - alpha
    over the subsets that were drawn. Needs groups.by = 'subsets'.
    """

    statement: ClassVar = "marginal"

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:  # noqa: ARG002
        """Check that subsets are independent random draws.

        Nothing else may connect the subsets.
        """
        drawn = ledger.facts.groups is not None and ledger.facts.groups.by == "subsets"
        return (
            Check(
                "groups are random subsets",
                "declared" if drawn else "failed",
                "drawn from the run's seed" if drawn else "groups are disjoint",
                "subsets that attackers did not know when they were chosen",
                "" if drawn else "set groups.by = 'subsets' and groups.size, or use 'group-vote'",
            ),
            *isolation_checks(ledger),
        )

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:  # noqa: ARG002
        """Bound the shares of subsets that vote for a class.

        Then convert the shares to numbers of clients.
        """
        cast = votes.expect(GroupVotes)
        groups = ledger.facts.groups
        assert groups is not None
        counts = formulas.vote_counts(cast.ballots, ledger.facts.classes)
        _, p_a, p_b = formulas.one_stage_bonferroni(counts, votes.settings.alpha)
        stood = formulas.ensemble_count(p_a, p_b, ledger.facts.clients, len(groups.members[0]))
        return self.guarantee_from_counts(counts, stood)
