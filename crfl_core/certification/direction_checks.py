"""Which checks keep two runs together, and in which direction a statement about them holds.

Backward: the run may have been attacked, and its clean world would have predicted the same. Forward: the run is taken
as it is, and attacks that might come instead would not change the prediction. Drift bounds are symmetric in the two
worlds; the observations from which they are computed are not, because only one world was observed.
See docs/certificates.md#two-directions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import crfl_core.certification.formulas as formulas
from crfl_core.certification import assumption_checks
from crfl_core.certification.assumption_checks import build_check, restrict_check
from crfl_core.certification.ball_rule_checks import spectrum_checks
from crfl_core.certification.contraction import domain_bound, effective_input_bound, has_honest_cap, input_bound

if TYPE_CHECKING:
    from crfl_core.plugin_api.certificate import Check
    from crfl_core.records.ledger import Ledger
    from crfl_core.records.threat import Threat


def pathwise_checks(ledger: Ledger, threat: Threat, last: int, *, observed: bool) -> tuple[Check, ...]:
    """Check what bounds the drift of two runs with shared noise.

    Attacks are up to round `last`. `observed` says that the size of the really submitted updates is used, see
    `DriftBound`.
    """
    return (
        assumption_checks.check_softmax_regression(ledger),
        assumption_checks.check_objective(ledger),
        assumption_checks.check_step_size(ledger, threat),
        assumption_checks.check_input_norms(ledger, threat),
        assumption_checks.check_weights(ledger),
        assumption_checks.check_participation(ledger, threat),
        assumption_checks.check_attacked_rounds(ledger, threat, last),
        assumption_checks.check_update_size(ledger, threat, observed=observed),
        assumption_checks.check_preprocessing(ledger),
        assumption_checks.check_random_streams(),
        assumption_checks.check_feature_maps(ledger),
        *spectrum_checks(ledger, threat),
        *forward_checks(ledger, threat),
    )


def forward_checks(ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
    """Check what the forward direction of a `DriftBound` needs.

    If one check fails, only backward is left.
    """
    checks = [check_bad_updates(ledger), check_future_caps(ledger, threat), check_clean_run(ledger, threat)]
    if threat.attacked_rounds > 1 and threat.poison != "update":
        checks.append(check_later_starts(ledger, threat))
        if threat.poison in ("features", "features+labels"):
            checks.append(restrict_check(check_poisoned_steps(ledger, threat), level="feature"))
    return tuple(restrict_check(check, level=check.level, direction="forward") for check in checks)


def check_bad_updates(ledger: Ledger) -> Check:
    """Check that bad updates keep their weight.

    A dropped one would raise the weights of other clients.
    """
    return build_check(
        "bad updates keep their weight",
        ledger.facts.bad_update == "zero",
        f"server.bad_update = {ledger.facts.bad_update!r}",
        "'zero'",
        "set server.bad_update = 'zero'",
    )


def check_future_caps(ledger: Ledger, threat: Threat) -> Check:
    """Check that caps bound future updates.

    They must be the caps of honest clients.
    """
    rows = ledger.clients.take(np.isin(ledger.clients.round, threat.rounds))
    above = np.isfinite(rows.cap) & ~has_honest_cap(ledger, rows)
    uncapped = threat.poison == "update" and not np.isfinite(rows.cap).all()
    measured = "they do"
    if uncapped:
        measured = "no cap"
    elif above.any():
        measured = "a cap above what honest clients may submit"
    return build_check(
        "caps bound what might come",
        not uncapped and not above.any(),
        measured,
        "caps of what honest clients may submit",
        "set server.cap_updates = true",
    )


def check_clean_run(ledger: Ledger, threat: Threat) -> Check:
    """Check that the run itself is a clean world.

    Otherwise the threat must cover its attackers. Covered attackers may submit any update. A run without scaling
    attackers does not show the scaled clean world.
    """
    rows = ledger.clients.take(ledger.clients.attacking)
    attackers = sorted(set(rows.client.tolist()))
    if isinstance(threat.clients, int):
        assumed = len(attackers) <= threat.clients
    else:
        assumed = set(attackers) <= set(threat.clients)
    in_time = bool(np.isin(rows.round, threat.rounds).all()) and not threat.has_too_many_rounds(rows.round.tolist())
    covered = threat.poison == "update" and assumed and in_time
    scaled = threat.clean_world == "scaled" and threat.scale > 1
    measured = "no client attacked"
    if attackers:
        measured = f"clients {attackers} attacked it"
    elif scaled:
        measured = "attackers scale in it"
    return build_check(
        "the run is a clean world",
        (not attackers or covered) and not scaled,
        measured,
        "a run without attackers, or threat.poison = 'update' with those who attacked among the assumed ones",
        "ask a run without an attack, against threat.clean_world = 'honest', or about threat.poison = 'update'",
    )


def check_later_starts(ledger: Ledger, threat: Threat) -> Check:
    """Check that the cost of scaling depends on observed models only.

    The models of later attacked rounds are never observed.
    """
    decays = bool(ledger.clients.weight_decay.any())
    return build_check(
        "later attacked rounds start unseen",
        threat.scale == 1 or not decays,
        f"scale {threat.scale:g}, {'with' if decays else 'without'} weight decay",
        "one attacked round, no scale, or no weight decay",
        "set threat.scale = 1, or threat.poison = 'update'",
    )


def check_poisoned_steps(ledger: Ledger, threat: Threat) -> Check:
    """Check that poisoned steps are non-expansive.

    This means `eta <= 2 / (beta' + 2 (lambda + mu))`. With several attacked rounds the shift of a gradient is known on
    the clean trajectory only.
    """
    rows = ledger.clients.take(np.isin(ledger.clients.round, threat.rounds))
    longest = effective_input_bound(ledger, max(input_bound(ledger), domain_bound(ledger, threat)))
    limits = formulas.largest_rate(longest * longest / 2.0, rows.weight_decay + ledger.facts.training.proximal)
    rate = float(rows.honest_rate.max(initial=0.0))
    limit = float(limits.min(initial=np.inf))
    return build_check(
        "poisoned steps are non-expansive",
        bool((rows.honest_rate <= limits).all()) and threat.scale == 1,
        f"eta = {rate:g}, limit {limit:.3g}, scale {threat.scale:g}",
        "eta <= 2/(beta' + 2 (lambda + mu)) for poisoned inputs, and no scale",
        "lower the rate or threat.input_bound, and set threat.scale = 1",
    )


def check_breakdown_direction() -> Check:
    """Refuse the forward direction of a breakdown.

    A breakdown may rest on the observed attack.
    """
    found = build_check(
        "breakdown bounds what might come",
        False,
        "a bound from what was observed",
        "fixed weights in the attacked round",
        "use a rule whose weights are fixed",
    )
    return restrict_check(found, direction="forward")
