"""FLTrust: clients are trusted as far as they pull in the direction of the server's own update."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from crfl_aggregators.geometry import Array, cosines_with, norms
from crfl_core.extend import Clients, ClientUpdates, Round, RuleResult, State, WeightedRule, Weighting

MIN_RELATIVE_LENGTH = 1e-20
"""Updates shorter than this share of the server's count as zero: their direction is rounding, and the factor that
would make them as long could not be written in single precision."""


class FLTrust(WeightedRule):
    """Mean of updates as long as the server's own, weighted by their cosine with it (Cao et al., 2021).

    The server trains on its root samples as a client does: `g_0`. With trust `t_i = max(0, cos(u_i, g_0))`, `aggregate
    = sum_i t_i (||g_0|| / ||u_i||) u_i / sum_i t_i`, zero if no client is trusted. The weight of a client is the factor
    of its update, the change of its length included: these may sum to more than 1.
    """

    needs_root: ClassVar[bool] = True

    learning_rate: float | None = Field(None, gt=0, description="of the server; unset: that of the median client")
    steps: int | None = Field(None, ge=1, description="of the server in a round; unset: those of the median client")
    batch_size: int | None = Field(None, ge=1, description="of the server; unset: that of the median client")

    def weigh(self, updates: ClientUpdates, state: State) -> Weighting:
        """Weigh by trust and length, and note the sum of all trust."""
        values = updates.values
        own = self._server_update(updates.round).to(values)
        length = float(norms(own[None])[0])
        lengths = norms(values).cpu().numpy()
        usable = (lengths > MIN_RELATIVE_LENGTH * length) & np.isfinite(lengths)
        trust = np.where(usable, cosines_with(values, own).clip(min=0.0), 0.0)
        total = float(trust.sum())
        factors = np.divide(length, lengths, out=np.zeros_like(trust), where=trust > 0)
        weights = factors * trust / total if total else factors
        return Weighting(weights, state, {"server_norm": length, "trust": total})

    def breakdown(self, clients: Clients, aggregate: RuleResult, update_bound: float) -> NDArray[np.float64]:  # noqa: ARG002
        """Bound the drift by `min(2, 4 k / T) ||g_0||`.

        k is the number of attackers, and T is the sum of all trust.

        Neither g_0 nor the trust in an honest client depends on the others. With and without the attack the aggregate
        is a mean of vectors of length ||g_0||, so it moves by at most twice that. Let h be the mean of the honest part.
        Attackers who have the trust a <= k pull the aggregate from h by a share a / (H + a) of a distance of at most
        2 ||g_0||, where H >= T - k is the trust in the others; that share is at most k / T, in both worlds.
        """
        length = aggregate.notes["server_norm"]
        total = aggregate.notes["trust"]
        attackers = np.arange(len(clients) + 1.0)
        shares = np.divide(attackers, total, out=np.where(attackers > 0, np.inf, 0.0), where=total > 0)
        drifts: Array = length * np.minimum(2.0, 4.0 * shares)
        return drifts

    def _server_update(self, current: Round) -> Tensor:
        """Train g_0 from the broadcast model."""
        clients = current.server.clients  # not those of the round: a bad update takes its client out of it
        return current.server.local_update(
            current.start,
            learning_rate=self.learning_rate or float(np.median(clients.learning_rate)),
            steps=self.steps or round(float(np.median(clients.steps))),
            batch_size=self.batch_size or round(float(np.median(clients.batch_size))),
            number=current.number,
        )
