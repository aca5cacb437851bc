"""The certificate of votes over everything after the attacked round, whatever happens there."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from crfl_certificates.resampled import Resampled, fresh_noise, unknown_rounds
from crfl_core.extend import (
    Check,
    Costs,
    Guarantee,
    Ledger,
    Level,
    Scenario,
    Threat,
    Votes,
    assumption_checks,
    bounds_of,
    formulas,
    forward_checks,
    guarantee,
    observed_breakdown,
    spectrum_checks,
)

Array = NDArray[np.float64]


class Postprocess(Resampled):
    """Noise drawn again from the attacked round on: the vote would have been the same. Any loss, any later aggregator.

    The noise of the attacked round hides the drift, `mu = D / sigma`; what follows is post-processing, the same in both
    worlds, and clipping and noise only help: the best of the Gaussian rule and of hockey-stick contraction counts. For
    rules that look at the updates (RFA, Krum) the drift is bounded by how far they break down.
    """

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        """One attacked round with noise, and a bound on the drift in it."""
        return (
            *(unknown_rounds(threat) or (assumption_checks.one_round(ledger, threat),)),
            assumption_checks.noise_in_round(ledger, self.start(threat.rounds)),
            *drift_checks(ledger, threat),
            assumption_checks.participation_fixed(ledger, threat),
            assumption_checks.public_preprocessing(ledger),
            assumption_checks.feature_map_lipschitz(ledger),
            *self.vote_checks(ledger, threat),
        )

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        """Votes as a budget, the budget as a drift of the attacked round's model, the drift as a radius."""
        first, p_a, p_b = bounds_of(votes)
        start = self.start(threat.rounds)
        noises = fresh_noise(ledger, start, votes.request.noise_std)
        clips = np.array([record.clip_norm for record in ledger.rounds[start - 1 :]])
        with np.errstate(divide="ignore"):
            diameters = 2.0 * clips[1:] / noises[1:]
        budget = formulas.hockey_stick_threshold(p_a, p_b, diameters, 2.0 * clips[0] / noises[0])
        return guarantee(costs(ledger, threat, start), level, first, np.asarray(noises[0] * budget), p_a, p_b)


def kind_of_drift(ledger: Ledger, threat: Threat) -> Literal["scenario", "breakdown"]:
    """How the drift of the attacked round is bounded: by fixed weights, or by the breakdown of the rule."""
    return "breakdown" if ledger.round(max(threat.rounds)).depends == "all" else "scenario"


def drift_checks(ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
    """What the bound on the drift needs."""
    number = max(threat.rounds)
    if not 1 <= number <= ledger.facts.rounds:
        return ()
    common = (
        assumption_checks.never_rejected(ledger),
        assumption_checks.only_model_leaves(ledger, number),
        *spectrum_checks(ledger, threat),
    )
    if kind_of_drift(ledger, threat) == "breakdown":
        anything = threat.model_copy(update={"poison": "update"})
        return (
            *common,
            assumption_checks.breakdown_known(ledger, threat),
            assumption_checks.inputs_bounded(ledger, anything),
            observed_breakdown(),
        )
    checks = [
        *common,
        *forward_checks(ledger, threat),
        assumption_checks.fixed_weights_in(ledger, number),
        assumption_checks.inputs_bounded(ledger, threat),
        assumption_checks.attack_bounded(ledger, threat),
    ]
    if threat.poison != "update":
        checks += [assumption_checks.softmax_regression(ledger), assumption_checks.non_expansive(ledger, threat)]
    return tuple(checks)


def costs(ledger: Ledger, threat: Threat, start: int) -> Costs:
    """The drift of the attacked round's model."""
    if kind_of_drift(ledger, threat) == "scenario":
        return Scenario.of(ledger, threat, start)
    return Breakdown(ledger, start, threat.attackers)


class Breakdown:
    """A rule that looks at the updates: what attackers do does not matter, only how many they are."""

    def __init__(self, ledger: Ledger, number: int, attackers: int) -> None:
        record = ledger.round(number)
        clients = ledger.facts.clients
        drifts = np.array(record.breakdown)
        self._costs = np.concatenate([drifts, np.full(max(0, clients + 1 - len(drifts)), np.inf)])
        self._cost = float(self._costs[attackers])
        self.rounding = 2.0 * record.rounding
        self.terms = ledger.facts.parameters

    def feature_cost(self, delta: Array) -> Array:
        """The same for every perturbation."""
        return np.full(np.shape(delta), self._cost)

    def sample_cost(self, ratio: Array) -> Array:
        """The same for every share above 0."""
        return np.where(np.asarray(ratio) > 0, self._cost, 0.0)

    def sample_costs(self) -> Array:
        """Nothing without a poisoned sample, the same for any number of them."""
        return np.array([0.0, self._cost])

    def client_costs(self) -> Array:
        """By number of attackers."""
        return self._costs
