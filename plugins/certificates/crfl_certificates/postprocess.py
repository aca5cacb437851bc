"""The certificate of votes over everything after the attacked round, whatever happens there."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from crfl_certificates.resampled import ResampledCertificate, check_known_rounds, fresh_noise_stds
from crfl_core.extend import (
    Check,
    DriftBound,
    DriftCosts,
    Guarantee,
    Ledger,
    Level,
    Threat,
    Votes,
    assumption_checks,
    build_guarantee,
    check_breakdown_direction,
    formulas,
    forward_checks,
    spectrum_checks,
    vote_bounds,
)

Array = NDArray[np.float64]


class Postprocess(ResampledCertificate):
    """Noise drawn again from the attacked round on: the vote would have been the same. Any loss, any later aggregator.

    The noise of the attacked round hides the drift, `mu = D / sigma`; what follows is post-processing, the same in both
    worlds, and clipping and noise only help: the best of the Gaussian rule and of hockey-stick contraction counts. For
    rules that look at the updates (RFA, Krum) the drift is bounded by how far they break down.
    """

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        """Check for one attacked round with noise and a drift bound."""
        return (
            *(check_known_rounds(threat) or (assumption_checks.check_single_round(ledger, threat),)),
            assumption_checks.check_noise(ledger, self.start(threat.rounds)),
            assumption_checks.check_precision(ledger),
            *drift_checks(ledger, threat),
            assumption_checks.check_participation(ledger, threat),
            assumption_checks.check_preprocessing(ledger),
            assumption_checks.check_feature_maps(ledger),
            *self.vote_checks(ledger, threat),
        )

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        """Convert votes to a radius, through a budget and a drift."""
        first, p_a, p_b = vote_bounds(votes)
        start = self.start(threat.rounds)
        noises = fresh_noise_stds(ledger, start, votes.request.noise_std)
        clips = np.array([record.clip_norm for record in ledger.rounds[start - 1 :]])
        with np.errstate(divide="ignore"):
            diameters = 2.0 * clips[1:] / noises[1:]
        budget = formulas.hockey_stick_threshold(p_a, p_b, diameters, 2.0 * clips[0] / noises[0])
        return build_guarantee(
            drift_costs(ledger, threat, start), level, first, np.asarray(noises[0] * budget), p_a, p_b
        )


def drift_kind(ledger: Ledger, threat: Threat) -> Literal["scenario", "breakdown"]:
    """Return how the drift of the attacked round is bounded.

    The bound comes from fixed weights or from the breakdown.
    """
    return "breakdown" if ledger.round(max(threat.rounds)).depends == "all" else "scenario"


def drift_checks(ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
    """Check what the bound on the drift needs."""
    number = max(threat.rounds)
    if not 1 <= number <= ledger.facts.rounds:
        return ()
    common = (
        assumption_checks.check_round_acceptance(ledger),
        assumption_checks.check_plugin_memory(ledger, number),
        assumption_checks.check_objective(ledger),
        *spectrum_checks(ledger, threat),
    )
    if drift_kind(ledger, threat) == "breakdown":
        anything = threat.model_copy(update={"poison": "update"})
        return (
            *common,
            assumption_checks.check_breakdown(ledger, threat),
            assumption_checks.check_input_norms(ledger, anything),
            check_breakdown_direction(),
        )
    checks = [
        *common,
        *forward_checks(ledger, threat),
        assumption_checks.check_weights_of_round(ledger, number),
        assumption_checks.check_input_norms(ledger, threat),
        assumption_checks.check_update_size(ledger, threat),
    ]
    if threat.poison != "update":
        checks += [
            assumption_checks.check_softmax_regression(ledger),
            assumption_checks.check_step_size(ledger, threat),
        ]
    return tuple(checks)


def drift_costs(ledger: Ledger, threat: Threat, start: int) -> DriftCosts:
    """Return the drift of the attacked round's model."""
    if drift_kind(ledger, threat) == "scenario":
        return DriftBound.of(ledger, threat, start)
    return BreakdownDrift(ledger, start, threat.attackers)


class BreakdownDrift:
    """A rule that looks at the updates: what attackers do does not matter, only how many they are."""

    def __init__(self, ledger: Ledger, number: int, attackers: int) -> None:
        record = ledger.round(number)
        clients = ledger.facts.clients
        drifts = np.maximum.accumulate(record.breakdown or (0.0,))  # more attackers can do what fewer can
        self._costs = np.concatenate([drifts, np.full(max(0, clients + 1 - len(drifts)), np.inf)])
        self._cost = float(self._costs[attackers])
        self.rounding = 2.0 * record.rounding
        self.terms = ledger.facts.parameters

    def feature_cost(self, delta: Array) -> Array:
        """Return the same drift for every perturbation."""
        return np.full(np.shape(delta), self._cost)

    def sample_cost(self, ratio: Array) -> Array:
        """Return the same drift for every share above 0."""
        return np.where(np.asarray(ratio) > 0, self._cost, 0.0)

    def sample_costs(self) -> Array:
        """Return the drift without and with poisoned samples.

        It is 0 without one, and the same for any number of them.
        """
        return np.array([0.0, self._cost])

    def client_costs(self) -> Array:
        """Return the drift by the number of attackers."""
        return self._costs
