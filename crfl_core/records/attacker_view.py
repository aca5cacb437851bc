"""Views of attackers: what they see when they craft an update, and when a round is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from crfl_core.errors import PluginFailure
from crfl_core.records.round import ClientUpdates, Round

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core.plugin_api.aggregator import Aggregator
    from crfl_core.plugin_api.model import BoundModel

Knowledge = Literal["own", "updates", "rule"]
"""Knowledge of attackers when they craft: their own updates, those of all participants, or also the server's rule."""


@dataclass(frozen=True)
class AttackerView:
    """View of the attackers when they craft what they submit. Read-only.

    `round` is as they see it: its clients are the attackers that take part, its streams those of the attack.
    `own_updates` are the updates that they trained, (a, P), and `weights` the p_i that they expect, (a,). The `model`
    is public, and so are the clean test inputs behind the feature maps, `features`, (m, features). `honest` has the
    updates of all other participants if the attack's `knowledge` is "updates" or "rule", and no rows if it is "own".
    """

    round: Round
    own_updates: Tensor
    weights: Tensor
    honest: ClientUpdates
    model: BoundModel
    features: Tensor
    aggregate_candidates: Callable[[Tensor, Aggregator | None], Tensor] | None = None

    def aggregate(self, candidates: Tensor, rule: Aggregator | None = None) -> Tensor:
        """Return the round's result if attackers submitted these candidates.

        The candidates are (a, P), and the result is what the server would make of the round, (P,). The candidates go
        through the run's own chain with its state, or through another `rule`. Raises `PluginFailure` unless the
        attack's `knowledge` is "rule".
        """
        if self.aggregate_candidates is None:
            raise PluginFailure("aggregate() is for attacks that know the rule: set knowledge = 'rule' in the class")
        return self.aggregate_candidates(candidates, rule)


@dataclass(frozen=True)
class AttackerObservation:
    """Observation of the attackers when a round of the run is over. Read-only.

    `round.start` was broadcast, and `following` is the model of the next round, clipped and noisy, (P,). The clients of
    `round` are the attackers that took part, and `submitted`, (a, P), is what the server took from them: crafted if the
    round was `attacked`, as trained if not.
    """

    round: Round
    following: Tensor
    submitted: Tensor
    attacked: bool
