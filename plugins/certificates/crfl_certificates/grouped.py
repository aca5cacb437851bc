"""Base of the certificates about groups of clients: the votes of the groups, and checks that nothing crosses them."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from crfl_core.extend import (
    ABSTAIN,
    Certificate,
    Check,
    Guarantee,
    Ledger,
    Level,
    Threat,
    VoteRequest,
    VoteSettings,
    assumption_checks,
)


class GroupCertificate(Certificate):
    """Base of certificates that count clients, from the votes of the groups' models."""

    groups: ClassVar[bool] = True
    levels_offered: ClassVar[tuple[Level, ...]] = ("client",)

    def round_scope(self) -> Literal["stated", "every"]:
        """Return "every": a client reaches the same votes, whenever it attacks."""
        return "every"

    def request(self, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:  # noqa: ARG002
        """Request the vote of every group."""
        return VoteRequest("groups")

    @staticmethod
    def guarantee_from_counts(counts: NDArray[np.int64], clients: NDArray[np.float64]) -> Guarantee:
        """Build the guarantee from counts and the tolerated numbers of clients.

        `counts` is (m, C). The radius is NaN where nothing is certified. `p_a` and `p_b` are the shares of the first
        and of the second class.
        """
        shares = np.sort(counts / counts.sum(axis=1, keepdims=True), axis=1)
        return guarantee_of_winner(counts.argmax(axis=1), shares[:, -1], shares[:, -2], clients)


def guarantee_of_winner(
    winner: NDArray[np.int64], p_a: NDArray[np.float64], p_b: NDArray[np.float64], clients: NDArray[np.float64]
) -> Guarantee:
    """Build the guarantee from the winners of votes.

    `clients` has the tolerated numbers of clients, NaN where the vote abstains.
    """
    with np.errstate(divide="ignore"):
        logs = np.log(clients)
    prediction = np.where(np.isnan(clients), ABSTAIN, winner)
    return Guarantee(prediction, radius=clients, log_radius=logs, p_a=p_a, p_b=p_b, count=clients)


def check_disjoint(ledger: Ledger) -> Check:
    """Check that every client is in one group."""
    disjoint = ledger.facts.groups is not None and ledger.facts.groups.by != "subsets"
    return Check(
        "groups are disjoint",
        "held" if disjoint else "failed",
        "every client is in one" if disjoint else "random subsets",
        "no client in two groups",
        "" if disjoint else "use the certificate 'group-vote', or groups.by = 'deal'",
    )


def isolation_checks(ledger: Ledger) -> tuple[Check, ...]:
    """Check that a group's model depends only on its own inputs.

    These are its members, public data and random streams.
    """
    judged = ledger.facts.rejects or any(not record.accepted and record.failed is None for record in ledger.rounds)
    replaced = next((record.weights_from for record in ledger.rounds if record.weights_from != "chain"), None)
    watching = ledger.facts.watching
    reserved = next((name for name, kept in ledger.facts.reserve.items() if kept.from_clients), None)
    crossing = ""
    remedy = "remove the plugin"
    if judged:
        crossing = "a plugin judges rounds"
    elif replaced:
        crossing = f"weights are replaced by {replaced}"
    elif watching:
        crossing = f"hooks of {watching[0]!r} see all groups"
    elif reserved:
        crossing = f"reserve.{reserved} is drawn from the samples of all clients"
        remedy = f"give it a dataset of its own: reserve.{reserved}.dataset"
    elif ledger.facts.scaling_fitted:
        crossing = f"scaling {ledger.facts.scaling!r} is fitted to the samples of all clients"
        remedy = "use a scaling with a fixed range, such as dataset.scaling = 'unit-range'"
    groups = ledger.facts.groups
    members = groups.members if groups is not None else ()
    sizes = sorted({len(group) for group in members})
    failed = ledger.failed_groups
    fixed_vote = "rank the classes by number" if groups and groups.voting == "condorcet" else "vote for class 0"
    return (
        Check(
            "nothing crosses groups",
            "failed" if crossing else "held",
            crossing or "rules, states, noise and streams are each group's own",
            "nothing that follows from several groups' clients",
            remedy if crossing else "",
        ),
        Check(
            "groups are frozen before round 1",
            "held",
            f"{len(members)} groups of {' to '.join(map(str, sizes[:: max(1, len(sizes) - 1)]))} clients in the ledger",
            "ids that the server issues",
            direction="forward",
        ),
        Check(
            "failed groups cast a fixed vote",
            "held",
            f"groups {list(failed)} {fixed_vote}" if failed else "no group failed",
            "a public vote",
        ),
        assumption_checks.check_preprocessing(ledger),
        *check_classes(ledger),
    )


def check_classes(ledger: Ledger) -> tuple[Check, ...]:
    """Declare that no client adds a class.

    An added class would be one of every group's model. The check is left out if the config states the classes.
    """
    if not ledger.facts.classes_found:
        return ()
    return (
        Check(
            "classes are public",
            "declared",
            f"the {ledger.facts.classes} classes that occur in the samples",
            "fixed before the data are seen",
            "name all classes: dataset.class_names",
        ),
    )
