"""What makes two runs stay together, and in which direction a statement about them may be read.

Backward is the reading of a run that may have been attacked: its clean world would have predicted the same. Forward is
that of a run as it is: attacks that might come instead would not change the prediction. What drift bounds say about two
worlds is symmetric; what they were computed from is not, because only one of the two was observed.
See docs/certificates.md#two-directions.
"""

from __future__ import annotations

import numpy as np

from crfl_core.certification import assumption_checks
from crfl_core.certification.assumption_checks import check, only
from crfl_core.certification.ball_rule_checks import spectrum_checks
from crfl_core.certification.contraction import domain_bound, input_bound, steepness
from crfl_core.certification.drift import capped_as_honest
from crfl_core.plugin_api.certificate import Check
from crfl_core.records.ledger import Ledger
from crfl_core.records.threat import Threat


def pathwise_checks(ledger: Ledger, threat: Threat, last: int, *, observed: bool) -> tuple[Check, ...]:
    """What keeps the parameters of two runs with the same noise together, for attacks up to round `last`.

    `observed`: the size of what clients really submitted is used, see `Scenario`.
    """
    return (
        assumption_checks.softmax_regression(ledger),
        assumption_checks.non_expansive(ledger, threat),
        assumption_checks.inputs_bounded(ledger, threat),
        assumption_checks.fixed_weights(ledger),
        assumption_checks.participation_fixed(ledger, threat),
        assumption_checks.rounds_exist(ledger, threat, last),
        assumption_checks.attack_bounded(ledger, threat, observed=observed),
        assumption_checks.public_preprocessing(ledger),
        assumption_checks.seeded_streams(),
        assumption_checks.feature_map_lipschitz(ledger),
        *spectrum_checks(ledger, threat),
        *forward_checks(ledger, threat),
    )


def forward_checks(ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
    """What the forward reading of a bound by `Scenario` needs; where one fails, only the backward reading is left."""
    checks = [bad_updates_weigh(ledger), caps_bound_the_future(ledger, threat), run_is_clean(ledger, threat)]
    if threat.attacked_rounds > 1 and threat.poison != "update":
        checks.append(later_starts_bounded(ledger, threat))
        if threat.poison in ("features", "features+labels"):
            checks.append(only(poisoned_steps_are_non_expansive(ledger, threat), level="feature"))
    return tuple(only(one, level=one.level, direction="forward") for one in checks)


def bad_updates_weigh(ledger: Ledger) -> Check:
    """An attacker whose update is dropped raises everybody else's weight, which it may do in every attack to come."""
    return check(
        "bad updates keep their weight",
        ledger.facts.bad_update == "zero",
        f"server.bad_update = {ledger.facts.bad_update!r}",
        "'zero'",
        "set server.bad_update = 'zero'",
    )


def caps_bound_the_future(ledger: Ledger, threat: Threat) -> Check:
    """An update to come is bounded by the cap alone, which counts only where it is that of honest clients."""
    rows = ledger.clients.take(np.isin(ledger.clients.round, threat.rounds))
    above = np.isfinite(rows.cap) & ~capped_as_honest(ledger, rows)
    uncapped = threat.poison == "update" and not np.isfinite(rows.cap).all()
    measured = "no cap" if uncapped else "a cap above what honest clients may submit" if above.any() else "they do"
    return check(
        "caps bound what might come",
        not uncapped and not above.any(),
        measured,
        "caps of what honest clients may submit",
        "set server.cap_updates = true",
    )


def run_is_clean(ledger: Ledger, threat: Threat) -> Check:
    """Nobody attacked the run; or whoever did is among the assumed attackers, of whom any update is expected.

    Attackers that scale in the clean world as well are not what a run shows in which nobody does.
    """
    rows = ledger.clients.take(ledger.clients.attacking)
    attackers = sorted(set(rows.client.tolist()))
    if isinstance(threat.clients, int):
        assumed = len(attackers) <= threat.clients
    else:
        assumed = set(attackers) <= set(threat.clients)
    then = bool(np.isin(rows.round, threat.rounds).all()) and not threat.too_many(rows.round.tolist())
    covered = threat.poison == "update" and assumed and then
    scaled = threat.clean_world == "scaled" and threat.scale > 1
    return check(
        "the run is a clean world",
        (not attackers or covered) and not scaled,
        f"clients {attackers} attacked it" if attackers else "attackers scale in it" if scaled else "nobody attacked",
        "a run without attackers, or threat.poison = 'update' with those who attacked among the assumed ones",
        "ask a run without an attack, against threat.clean_world = 'honest', or about threat.poison = 'update'",
    )


def later_starts_bounded(ledger: Ledger, threat: Threat) -> Check:
    """With several attacked rounds, what scaling adds must not depend on models that were never seen."""
    decays = bool(ledger.clients.weight_decay.any())
    return check(
        "later attacked rounds start unseen",
        threat.scale == 1 or not decays,
        f"scale {threat.scale:g}, {'with' if decays else 'without'} weight decay",
        "one attacked round, no scale, or no weight decay",
        "set threat.scale = 1, or threat.poison = 'update'",
    )


def poisoned_steps_are_non_expansive(ledger: Ledger, threat: Threat) -> Check:
    """With several attacked rounds the shift of a gradient is known on the clean trajectory only.

    So it is the poisoned steps that have to be non-expansive, `eta <= 2 / (beta' + 2 (lambda + mu))`.
    """
    rows = ledger.clients.take(np.isin(ledger.clients.round, threat.rounds))
    beta = steepness(ledger, max(input_bound(ledger), domain_bound(ledger, threat))) ** 2 / 2.0
    limits = 2.0 / (beta + 2.0 * (rows.weight_decay + ledger.facts.training.proximal))
    rate = float(rows.honest_rate.max(initial=0.0))
    limit = float(limits.min(initial=np.inf))
    return check(
        "poisoned steps are non-expansive",
        bool((rows.honest_rate <= limits).all()) and threat.scale == 1,
        f"eta = {rate:g}, limit {limit:.3g}, scale {threat.scale:g}",
        "eta <= 2/(beta' + 2 (lambda + mu)) for poisoned inputs, and no scale",
        "lower the rate or threat.input_bound, and set threat.scale = 1",
    )


def observed_breakdown() -> Check:
    """A breakdown may rest on what was observed of the attacked round, which tells nothing about another attack."""
    found = check(
        "breakdown bounds what might come",
        False,
        "a bound from what was observed",
        "fixed weights in the attacked round",
        "use a rule whose weights are fixed",
    )
    return only(found, direction="forward")
