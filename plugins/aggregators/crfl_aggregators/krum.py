"""Krum and Multi-Krum: the updates with the nearest neighbours."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from crfl_aggregators.filters import rank_clients
from crfl_aggregators.geometry import Array, pairwise_distances, row_blocks
from crfl_core.extend import Clients, ClientUpdates, OptionError, RuleResult, State, WeightedRule, formulas


class Krum(WeightedRule):
    """The one update with the lowest Krum score (Blanchard et al., 2017).

    `aggregate = u_i` with the least `s_i = sum of ||u_i - u_j||^2 over the n - f - 2 nearest neighbours j` of i, itself
    not counted; ties go to the lower id. Some libraries count n - f - 1 or n - f neighbours; this is the paper's
    number.
    """

    f: int = Field(1, ge=0, description="malicious clients that are tolerated; needs clients >= 2 f + 3")

    def check(self, clients: Clients) -> None:
        """Raise `OptionError` unless the honest majority is large enough."""
        check_majority("krum", self.f, len(clients))

    def weigh(self, updates: ClientUpdates, state: State) -> Array:  # noqa: ARG002
        """Choose one update, with weight 1."""
        return weigh_best(updates, self.f, keep=1)

    def breakdown(self, clients: Clients, aggregate: RuleResult, update_bound: float) -> Array:  # noqa: ARG002
        """Bound the drift that f attackers can cause.

        They cannot make an update win that is far from all honest ones.
        """
        drift = float(formulas.krum_drift(update_bound, clients=len(aggregate.weights), attackers=self.f))
        return np.array([0.0] + [drift] * self.f)


class MultiKrum(WeightedRule):
    """Mean of the `keep` updates with the lowest Krum scores (Blanchard et al., 2017).

    `aggregate = 1 / keep * sum of u_i over the lowest s_i`, with the scores `s_i` of `krum`; ties go to the lower id.
    """

    f: int = Field(1, ge=0, description="malicious clients that are tolerated; needs clients >= 2 f + 3")
    keep: int | None = Field(None, ge=1, description="updates that are averaged; unset: clients - f")

    def check(self, clients: Clients) -> None:
        """Raise `OptionError` if f or `keep` is too large.

        The majority must be large enough, and `keep` at most its size.
        """
        check_majority("multi-krum", self.f, len(clients))
        if self.keep is not None and self.keep > len(clients) - self.f:
            raise OptionError(
                "keep",
                f"must be at most clients - f, the honest ones, found keep = {self.keep} for {len(clients)} clients "
                f"and f = {self.f}",
            )

    def weigh(self, updates: ClientUpdates, state: State) -> Array:  # noqa: ARG002
        """Average the chosen updates."""
        return weigh_best(updates, self.f, keep=self.keep or max(1, len(updates.values) - self.f))


def weigh_best(updates: ClientUpdates, f: int, keep: int) -> Array:
    """Return equal weights for the `keep` updates with the lowest scores.

    If there are fewer updates, all get equal weights.
    """
    total = len(updates.values)
    scores = krum_scores(pairwise_distances(updates.values), f)
    chosen = rank_clients(scores, updates.round.clients.ids)[: min(keep, total)]
    weights = np.zeros(total)
    weights[chosen] = 1.0 / len(chosen)
    return weights


def check_majority(rule: str, f: int, clients: int) -> None:
    """Raise `OptionError` unless 2 f + 2 < n.

    Blanchard et al. need that.
    """
    if clients < 2 * f + 3:
        raise OptionError(
            "f",
            f"{rule} needs clients >= 2 f + 3, found {clients} clients and f = {f}: lower f, or let more clients "
            "take part",
        )


def krum_scores(distances: Array, f: int) -> Array:
    """Sum the squared distances of each client to its nearest others.

    The nearest are `n - f - 2` others, and at least one.
    """
    neighbours = max(1, len(distances) - f - 2)
    near = (np.sort(distances[rows], axis=1)[:, 1 : neighbours + 1].sum(axis=1) for rows in row_blocks(distances))
    return np.concatenate([*near])
