"""The assumptions of the sound certificates, each checked on the ledger of a run.

A check that fails refuses the certificate; an assumption that the ledger cannot verify is declared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

import crfl_core.certification.formulas as formulas
from crfl_core.certification.contraction import domain_bound_without_bias, input_bound, smoothness
from crfl_core.plugin_api.base import is_built_in, name_with_distribution
from crfl_core.plugin_api.certificate import Certificate, Check, Direction, Level
from crfl_core.records.measurements import norm_error, precision

if TYPE_CHECKING:
    from crfl_core.records.ledger import Ledger
    from crfl_core.records.threat import Threat

FIXED_RULE_REMEDY = "use a rule whose weights are fixed, as `crfl plugins` lists them"
UNIT_BALL_REMEDY = "set model.features = { type = 'unit-ball' }"
PLAIN_STEP_REMEDY = "use server.optimiser = { type = 'rate' }, or none"
WEIGHT_SUM_TOLERANCE = 1e-6
"""Amount by which weights may sum to more than 1; the excess counts as an expansion of their round."""


def build_check(name: str, holds: bool, measured: str, required: str, remedy: str = "") -> Check:
    """Build a check that is either held or failed.

    A failed check states the remedy.
    """
    return Check(name, "held" if holds else "failed", measured, required, "" if holds else remedy)


def restrict_check(check: Check, *, level: Level | None = None, direction: Direction | None = None) -> Check:
    """Restrict a check to one level, or to one direction.

    The direction is that of the statement.
    """
    return replace(check, level=level, direction=direction)


def check_softmax_regression(ledger: Ledger) -> Check:
    """Check that the model is softmax regression, trained by SGD.

    The loss must be cross-entropy, linear in the parameters, and SGD may be plain or proximal. Other algorithms
    remember earlier gradients, and a clipped gradient is not the gradient of a convex loss: their steps may expand.
    """
    facts = ledger.facts.model_facts
    training = ledger.facts.training
    name = "softmax regression by plain SGD"
    required = "a convex loss, linear in the parameters, and SGD of the core"
    if not training.plain:
        measured = f"algorithm {training.algorithm!r}"
        remedy = "set training.algorithm = 'sgd' or 'fedprox'"
        return build_check(name, False, measured, required, remedy)
    if training.clip_gradients is not None:
        measured = f"gradients are clipped at {training.clip_gradients:g}"
        return build_check(name, False, measured, required, "leave out training.clip_gradients, or use 'postprocess'")
    return build_check(
        name,
        facts.linear and facts.convex and facts.loss == "cross-entropy",
        f"model {ledger.facts.model!r}",
        required,
        "use model.type = 'softmax', or the certificate 'postprocess'",
    )


def check_objective(ledger: Ledger) -> Check:
    """Check that clients minimise what drift bounds are about.

    This is the plain mean of losses, with decay toward 0. With class balance one changed sample changes the weights of
    a client's others, and the weights of a batch may sum to more than 1. Decay toward the start model leaves residuals
    that no cap knows. Votes of groups rest on neither.
    """
    training = ledger.facts.training
    measured = "the plain mean, and decay toward 0"
    option = ""
    if training.class_balance:
        option = "class_balance"
        measured = "samples are weighed by the counts of their classes, which a poisoned sample changes"
    elif training.toward_start:
        option = "toward_start"
        measured = "weight decay pulls toward the start model, and bounds on updates are about a pull toward 0"
    return build_check(
        "clients minimise the plain mean of their losses",
        not option,
        measured,
        "equal weights of a client's samples, and decay toward 0",
        f"set training.{option} = false, or use groups and the certificate 'group-vote'",
    )


def check_step_size(ledger: Ledger, threat: Threat) -> Check:
    """Check eta <= 2 / beta for every client in every round.

    The check is made in double precision. A proximal weight mu counts twice in beta, because it pulls toward another
    model in each world. Attackers count with their real rate, too, unless the threat assumes nothing about their
    training.
    """
    norm = input_bound(ledger)
    beta = smoothness(ledger)
    rows = ledger.clients
    rates = rows.honest_rate if threat.poison == "update" else np.maximum(rows.honest_rate, rows.learning_rate)
    limits = formulas.largest_rate(beta + rows.weight_decay, ledger.facts.training.proximal)
    worst = int(np.argmax(rates - limits))
    rate = rates[worst]
    limit = limits[worst]
    if rate > limit:
        spectrum = ledger.facts.training.spectrum
        why = f"max ||x|| = {norm:.3g}" if spectrum is None else f"L = {spectrum:g}"
        remedy = f"{UNIT_BALL_REMEDY} or lower the rate" if spectrum is None else "lower the rate or training.spectrum"
        reason = f"eta = {rate:g} > 2/beta = {limit:.3g} because {why}"
        return build_check("local steps are non-expansive", False, reason, "eta <= 2/beta", remedy)
    measured = f"eta = {rate:g} <= 2/beta = {limit:.3g}"
    if ledger.facts.dtype == "float64":
        return Check("local steps are non-expansive", "held", measured, "eta <= 2/beta, in double precision")
    return Check(
        "local steps are non-expansive",
        "declared",
        f"{measured}, in single precision",
        "eta <= 2/beta, in double precision",
        "set dtype = 'float64'",
    )


def check_precision(ledger: Ledger) -> Check:
    """Check that the run uses double precision.

    We have no proof of what rounding in single precision adds to a drift.
    """
    single = ledger.facts.dtype != "float64"
    return Check(
        "rounding is bounded",
        "declared" if single else "held",
        "single precision" if single else "double precision",
        "double precision",
        "set dtype = 'float64'" if single else "",
    )


def check_input_norms(ledger: Ledger, threat: Threat) -> Check:
    """Check the norms of clean and poisoned inputs.

    Clean inputs must keep the declared bound, and poisoned inputs a finite one.
    """
    declared = ledger.facts.feature_norm_bound
    found = max(ledger.facts.feature_norms)
    error = norm_error(ledger.facts)
    holds = found <= declared * (1 + 2 * error)
    if threat.poison == "update":  # what attackers feed their models does not matter
        measured = f"largest {found:.4g}, declared {declared:.4g}"
        return declare_missing_measurement(
            ledger, build_check("input norms", holds, measured, "all inputs keep the bound", UNIT_BALL_REMEDY)
        )
    limit = domain_bound_without_bias(ledger, threat)
    poisoned = float(ledger.clients.poisoned_norm.max(initial=0.0))
    makers = ledger.facts.foreign_maps
    measured = f"largest {found:.4g}, poisoned {poisoned:.4g}, declared {limit:.4g}"
    kept = build_check(
        "input norms",
        holds and np.isfinite(limit) and poisoned * (1 + error) <= limit,
        measured,
        "a finite declared bound that all inputs keep",
        f"{UNIT_BALL_REMEDY}, use a bounded scaling, or set threat.input_bound",
    )
    if makers and not threat.input_bound and kept.status == "held":
        return replace(kept, status="declared", measured=f"{measured} by {', '.join(makers)}")
    return declare_missing_measurement(ledger, kept)


def declare_missing_measurement(ledger: Ledger, found: Check) -> Check:
    """Declare a held check of data that were not measured here.

    The data are those of the clients.
    """
    return found if ledger.facts.measured or found.status == "failed" else replace(found, status="declared")


def optimiser_objection(ledger: Ledger, rounds: Iterable[int]) -> str:
    """Describe a server optimiser that did more than a plain step.

    It names the first such round among `rounds`; empty if every step was plain. The weights of the clients do not
    contain the effect of such a step, nor that of a memory in later rounds.
    """
    found = next((number for number in rounds if ledger.round(number).server_rate is None), None)
    if found is None:
        return ""
    remembers = " and remembers them" if ledger.round(found).carries_state else ""
    return f"round {found}: server.optimiser {ledger.facts.optimiser!r} looks at the updates{remembers}"


def check_weights(ledger: Ledger) -> Check:
    """Check that the aggregation weights agree in both worlds.

    They must be fixed or capped above honest updates, and at most 1 in all.
    """
    name = "aggregation weights are fixed"
    required = "fixed weights of at most 1 in all, no capped honest client"
    if stepping := optimiser_objection(ledger, range(1, ledger.facts.rounds + 1)):
        return build_check(name, False, stepping, f"{required}, and a plain step of the server", PLAIN_STEP_REMEDY)
    replaced = next((record for record in ledger.rounds if record.weights_from != "chain"), None)
    if replaced is not None:
        measured = f"round {replaced.round}: replaced by {replaced.weights_from}"
        return build_check(name, False, measured, required, "remove the plugin that answers crfl_effective_weights")
    dependent = next((record for record in ledger.rounds if record.depends == "all"), None)
    if dependent is not None:
        remedy = "use a rule whose weights are fixed, or the certificate 'postprocess'"
        return build_check(name, False, f"round {dependent.round}: they depend on all updates", required, remedy)
    rejected = next((record for record in ledger.rounds if not record.accepted), None)
    if rejected is not None or ledger.facts.rejects:
        return build_check(name, False, "a plugin may reject rounds", required, "remove the plugin that judges rounds")
    if any(record.depends == "own" for record in ledger.rounds):
        low = ledger.clients.cap < ledger.clients.update_bound * (1 - 4 * precision(ledger.facts))
        if low.any():
            row = int(np.argmax(low))
            cap = ledger.clients.cap[row]
            bound = ledger.clients.update_bound[row]
            measured = f"a cap of {cap:.4g} below what an honest client may submit, {bound:.4g}"
            return build_check(name, False, measured, required, "set server.cap_updates = true instead of the cap")
    remembering = next((record for record in ledger.rounds if record.carries_state), None)
    if remembering is not None:
        measured = f"round {remembering.round}: a plugin remembers earlier updates"
        return build_check(name, False, measured, required, "remove the aggregator that keeps a history")
    weights = ledger.clients.weight_bound
    if (weights < 0).any():
        return build_check(
            name, False, f"a weight of {weights.min():.3g}", f"{required}, none negative", FIXED_RULE_REMEDY
        )
    sums = np.bincount(ledger.clients.round, weights=weights, minlength=ledger.facts.rounds + 1)[1:]
    least = float(sums.min())
    most = float(sums.max())
    off = max(most - 1.0, 1.0 - least)
    measured = f"sums within {off:.1e} of 1" if off <= WEIGHT_SUM_TOLERANCE else f"sums of {least:.6g} to {most:.6g}"
    return build_check(
        name,
        most <= 1 + WEIGHT_SUM_TOLERANCE,
        measured,
        required,
        f"{FIXED_RULE_REMEDY}, and a rate of the server of at most 1",
    )


def check_participation(ledger: Ledger, threat: Threat) -> Check:
    """Check that attackers do not decide who takes part.

    They must not decide what other clients weigh, either. Participants are drawn from a seed. The server puts zero in
    place of a bad update, which is not an update of the protocol, so every client that submitted one counts as an
    attacker, beside the known ones.
    """
    name = "participation does not depend on the attackers"
    required = "no bad updates but those of arbitrary attackers"
    bad = ledger.clients.take(ledger.clients.quarantined)
    measured = f"drawn from the seed; {len(bad)} bad updates of {len(np.unique(bad.client))} clients"
    measured += f", who count among {threat.attackers} assumed attackers" if len(bad) else ""
    if (bad.weight_bound == 0).any():
        return build_check(
            name, False, f"{measured}, dropped with their weights", required, "set server.bad_update = 'zero'"
        )
    suspects = ledger.clients.take(ledger.clients.quarantined | ledger.clients.attacking)
    if isinstance(threat.clients, int):
        malicious = len(np.unique(suspects.client)) <= threat.clients
    else:
        malicious = bool(np.isin(bad.client, threat.clients).all())
    in_time = bool(np.isin(bad.round, threat.rounds).all()) and not threat.has_too_many_rounds(suspects.round.tolist())
    covered = threat.poison == "update" and malicious and in_time
    remedy = "set threat.poison = 'update' and let threat.clients and threat.rounds cover them"
    return build_check(name, len(bad) == 0 or covered, measured, required, remedy)


def check_update_size(ledger: Ledger, threat: Threat, *, observed: bool = False) -> Check:
    """Check that malicious updates are capped, observed or scaled as declared.

    Observed means observed in this run.
    """
    rows = ledger.clients.take(np.isin(ledger.clients.round, threat.rounds))
    name = "size of malicious updates"
    required = "an update cap, or a declared scale"
    if len(rows) and np.isfinite(rows.cap).all():
        return Check(name, "held", "capped by the server", required)
    if threat.poison != "update":
        return Check(name, "declared", f"scale at most {threat.scale:g}", required)
    known = observed and threat.clean_world == "honest" and bool(np.isfinite(rows.update_bound).all())
    measured = "no cap; what was submitted is known" if known else "no cap"
    return build_check(name, known, measured, "an update cap", "set server.cap_updates = true")


def check_preprocessing(ledger: Ledger) -> Check:
    """Check that preprocessing does not depend on the clients' data.

    This covers scaling, feature maps and the start model.
    """
    facts = ledger.facts
    low, high = facts.domain
    declared = facts.scaling == "declared"
    fitted = " fitted on training data" if facts.scaling_fitted else ""
    fitted += " by ranges that the dataset or the config states" if declared else ""
    given = facts.start.kind in ("file", "reserve")
    start = ""
    if facts.start.kind == "file":
        start = f", start model from a file ({facts.start.digest:.12}), taken as public and trusted"
    elif facts.start.kind == "reserve":
        start = f", start model ({facts.start.digest:.12}) trained on labelled samples of the server, who is trusted"
    words = {"curator": "inputs of a curator who is assumed trusted", "public": "public inputs of its own"}
    maps = "".join(f", a feature map with SHA-256 {digest[:12]}..." for digest in facts.feature_digests)
    maps += "".join(
        f", {fitted_map.feature_map!r} fitted to {fitted_map.samples} {words[fitted_map.source]}"
        for fitted_map in facts.fitted_maps
    )
    curated = any(fitted_map.source == "curator" for fitted_map in facts.fitted_maps)
    trusted = declared or facts.scaling_fitted or given or bool(facts.feature_digests) or curated
    return Check(
        "preprocessing is public",
        "declared" if trusted else "held",
        f"scaling {facts.scaling!r}{fitted}, inputs within [{low:g}, {high:g}]{maps}{start}",
        "fixed before the data are seen",
    )


def check_trusted_data(ledger: Ledger) -> tuple[Check, ...]:
    """Declare that data which the server cannot check are trusted.

    These are reserved data, and honest clients whose data the server cannot see.
    """
    facts = ledger.facts
    found = f"{facts.clients} clients registered {sum(facts.samples)} samples within [{facts.domain[0]:g}, "
    found += f"{facts.domain[1]:g}] before round 1; who answers in time does not depend on the attackers"
    elsewhere = Check("honest clients follow the protocol", "declared", found, "data that the server cannot see")
    return (() if facts.measured else (elsewhere,)) + tuple(
        Check(
            "reserved data are trusted",
            "declared",
            f"reserve.{name}: {kept.samples} samples, used by {', '.join(kept.used_by)}",
            "samples that no attacker chose or changed",
        )
        for name, kept in ledger.facts.reserve.items()
        if kept.used_by
    )


def check_trusted_code(ledger: Ledger, certificate: Certificate) -> tuple[Check, ...]:
    """Declare which devices, engines and certificates are trusted.

    These are a GPU, an engine with other processes, and a certificate that is not part of crfl.
    """
    found = []
    if ledger.facts.device != "cpu":
        found.append(
            Check(
                "the device repeats its bits",
                "declared",
                f"{ledger.facts.device!r}, which may add up the same numbers in another order",
                "the same bits from the same numbers",
                "set device = 'cpu'",
            )
        )
    if ledger.facts.engine:
        found.append(
            Check(
                "the engine and its workers are trusted",
                "declared",
                f"{ledger.facts.engine}: updates and continuations are not trained again here, and of its votes one "
                "random block of every test set is counted again",
                "updates, continuations and votes as this process would compute them",
            )
        )
    if certificate.sound and not is_built_in(certificate):
        found.append(
            Check(
                "the certificate is correct",
                "declared",
                f"declared by {name_with_distribution(certificate)}",
                "a proof of what it certifies",
            )
        )
    return tuple(found)


def check_feature_maps(ledger: Ledger) -> Check:
    """Check that the feature maps have a Lipschitz constant.

    Only the feature level needs one. Those of crfl are proved. Only the author of another map can prove its constant,
    which is declared.
    """
    constant = ledger.facts.feature_lipschitz
    makers = ledger.facts.foreign_maps
    found = build_check(
        "feature maps are Lipschitz",
        constant is not None,
        "no constant"
        if constant is None
        else f"constant {constant:.4g}" + (f", declared by {', '.join(makers)}" if makers else ""),
        "a Lipschitz constant",
        "use 'unit-ball' instead of 'unit-sphere'",
    )
    if makers and found.status == "held":
        found = replace(found, status="declared")
    return restrict_check(found, level="feature")


def check_attacked_rounds(ledger: Ledger, threat: Threat, last: int) -> Check:
    """Check that all attacked rounds lie within 1..`last`.

    Up to round `last` the certificate compares the worlds.
    """
    outside = [number for number in threat.rounds if not 1 <= number <= last]
    return build_check(
        "attacked rounds",
        not outside and bool(threat.rounds),
        threat.rounds_text,
        f"within 1..{last}" + ("" if last == ledger.facts.rounds else ", before the noise is drawn again"),
        f"set threat.rounds within 1..{last}" + ("" if last == ledger.facts.rounds else ", or a later resample_from"),
    )


def check_single_round(ledger: Ledger, threat: Threat) -> Check:
    """Check that there is exactly one attacked round and that it exists."""
    return build_check(
        "attacked rounds",
        len(threat.rounds) == 1 and 1 <= threat.rounds[0] <= ledger.facts.rounds,
        threat.rounds_text,
        f"one round within 1..{ledger.facts.rounds}",
        "set threat.rounds to one round, or use the certificate 'tail'",
    )


def check_noise(ledger: Ledger, number: int) -> Check:
    """Check that the attacked round has noise, which hides the attack."""
    final = number >= ledger.facts.rounds
    noise = ledger.facts.test_noise_std if final else ledger.round(max(1, number)).noise_std
    return build_check(
        "noise in the attacked round", noise > 0, f"{noise:g}", "above 0", "set server.noise_std above 0"
    )


def check_weights_of_round(ledger: Ledger, number: int) -> Check:
    """Check that the weights of one round agree in both worlds.

    Caps may clip every client.
    """
    record = ledger.round(number)
    return build_check(
        "aggregation weights are fixed",
        record.weights_from == "chain"
        and record.depends in ("fixed", "own")
        and bool((ledger.clients.of_round(number).weight_bound >= 0).all()),
        f"round {number}: {record.depends}, reported by the {record.weights_from}",
        "fixed weights in the attacked round, none negative",
        FIXED_RULE_REMEDY,
    )


def check_round_acceptance(ledger: Ledger) -> Check:
    """Check that plugins reject no round.

    In the other world they could decide differently.
    """
    return build_check(
        "rounds are always accepted",
        not ledger.facts.rejects and all(record.accepted for record in ledger.rounds),
        "a plugin may reject rounds" if ledger.facts.rejects else "no plugin judges rounds",
        "no plugin that judges rounds",
        "remove the plugin that judges rounds",
    )


def check_plugin_memory(ledger: Ledger, number: int) -> Check:
    """Check that plugins carry nothing of a round into later ones.

    Noise hides only the model.
    """
    kept = ledger.facts.training.remembers
    if kept and number < ledger.facts.rounds:
        return build_check(
            "only the noisy model leaves the attacked round",
            False,
            f"clients keep {', '.join(kept)} from round to round",
            "an algorithm without memory",
            "set training.algorithm = 'sgd'",
        )
    carries = ledger.round(number).carries_state and number < ledger.facts.rounds
    return build_check(
        "only the noisy model leaves the attacked round",
        not carries,
        "a plugin remembers the round" if carries else "no plugin remembers the round",
        "aggregators and optimisers without memory",
        PLAIN_STEP_REMEDY if optimiser_objection(ledger, (number,)) else "remove the aggregator that keeps a history",
    )


def check_breakdown(ledger: Ledger, threat: Threat) -> Check:
    """Check that a data-dependent rule states how far attackers move it.

    A data-dependent rule looks at the updates.
    """
    known = ledger.round(max(threat.rounds)).breakdown
    attackers = len(known) - 1 if known else 0
    if stepping := optimiser_objection(ledger, (max(threat.rounds),)):
        return build_check(
            "breakdown of the aggregation rule", False, stepping, "a plain step of the server", PLAIN_STEP_REMEDY
        )
    found = build_check(
        "breakdown of the aggregation rule",
        known is not None and attackers >= 1 and threat.clean_world == "honest",
        f"declared by {ledger.facts.rule or 'the rule'} for up to {attackers} attackers, {threat.clean_world} clean "
        "world",
        "a known breakdown, against the honest clean world",
        "use a rule that states its breakdown, bounded inputs, and threat.clean_world = 'honest'",
    )
    # Only the author of the rule can prove how far it moves, so the numbers are as good as that proof.
    return found if found.status == "failed" else replace(found, status="declared")


def check_kept_model(ledger: Ledger, number: int) -> Check:
    """Check that a round's model before noise was kept.

    Then its noise can be drawn again.
    """
    kept = ", ".join(map(str, ledger.facts.resampled)) or "none"
    return build_check(
        "model before noise was kept",
        number in ledger.facts.resampled,
        f"kept are rounds {kept}",
        f"round {number}",
        "choose the round before the run: resample_from, threat.rounds or attack.rounds",
    )


def check_vote_independence() -> Check:
    """State that every continuation casts one vote.

    Each has training and test noise of its own.
    """
    return Check("votes are independent", "held", "one vote per continuation, noise streams keyed by continuation")


def check_vote_secrecy(ledger: Ledger) -> Check:
    """Check that attackers could not know the vote noise.

    Every reader of a config knows its seed.
    """
    secret = ledger.facts.secret_votes
    return Check(
        "vote noise is secret",
        "held" if secret else "declared",
        "its seed was drawn after training" if secret else "its seed was set before training",
        "noise that no attacker knew",
        "" if secret else "set seeds.votes = 'secret'",
    )


def check_random_streams() -> Check:
    """State that both worlds share noise, batches and participation.

    They are drawn from keyed streams.
    """
    return Check("both worlds share their random streams", "held", "keyed by purpose, round, client and replica")
