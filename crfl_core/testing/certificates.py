"""Checks of certificates: the laws of a radius, and refusals that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, get_args

import numpy as np
from numpy.typing import NDArray

from crfl_core.plugin_api.certificate import Certificate, Guarantee, Level, Statement
from crfl_core.testing.sample_run import (
    alter_ledgers,
    find_trial,
    scale_columns,
    shorten_updates,
    strengthen_votes,
    tie_votes,
    unknown_ledger,
    with_columns,
    with_facts,
)
from crfl_core.testing.suite import Case, CheckFailed, Skipped, check_for, usage_of

if TYPE_CHECKING:
    from crfl_core.records.ledger import Ledger

RADIUS_TOLERANCE = 1e-9
SIZES: tuple[float, ...] = tuple(np.geomspace(1e-6, 1.0, 13).tolist())
"""Factors by which submissions are shortened, so that there is something to certify."""


@usage_of(Certificate)
def use_certificate(certificate: Certificate, case: Case[Certificate]) -> dict[str, object]:
    """Audit and certify a finished run."""
    trial = replace(case.once(find_trial), certificate=certificate)
    return {"audit": trial.audit()} | {level: trial.certify(level) for level in trial.allowed()}


@check_for(Certificate)
def check_declares_claims(case: Case[Certificate]) -> None:
    """Levels and the kind of statement are declared, and what is not sound says so in its label."""
    certificate = case.plugin
    offered = certificate.levels_offered
    if not offered or not set(offered) <= set(get_args(Level)):
        raise CheckFailed(f"levels_offered among {get_args(Level)}", f"{offered}", "declare them as a ClassVar")
    if getattr(certificate, "statement", None) not in get_args(Statement):
        raise CheckFailed(
            f"a statement among {get_args(Statement)}",
            repr(getattr(certificate, "statement", None)),
            "declare what the probability is over",
        )
    if not certificate.sound and not certificate.label:
        raise CheckFailed("a label on a certificate that is not sound", "none", "say what kind of number it is")


@check_for(Certificate)
def check_answers_every_sample(case: Case[Certificate]) -> None:
    """There is an answer for each sample: a known class, with bounds on probabilities within [0, 1]."""
    for level, guarantee in trial_guarantees(case):
        samples = len(case.once(find_trial).votes.labels)
        for name, column in vars(guarantee).items():
            if column is not None and np.shape(column) != (samples,):
                raise CheckFailed(f"{samples} entries in {name}", f"{np.shape(column)}", "answer for every sample")
        known = (guarantee.prediction >= -1) & (guarantee.prediction < case.once(find_trial).ledger.facts.classes)
        if not known.all():
            raise CheckFailed(
                f"classes or ABSTAIN at the {level} level",
                f"{guarantee.prediction[~known][0]}",
                "predict a label, or -1",
            )
        for name, bound in (("p_a", guarantee.p_a), ("p_b", guarantee.p_b)):
            if bool(((bound < 0) | (bound > 1)).any()):
                raise CheckFailed(f"{name} within [0, 1], or NaN", f"{bound.min()} to {bound.max()}", "clip the bound")


@check_for(Certificate)
def check_nothing_is_certified_without_a_prediction(case: Case[Certificate]) -> None:
    """Where it abstains there is no radius; any other is a number of at least 0, or NaN where nothing is certified."""
    for level, guarantee in trial_guarantees(case):
        if not np.isnan(guarantee.radius[guarantee.abstained]).all():
            raise CheckFailed("no radius where it abstains", "one", "set radius to NaN where prediction is ABSTAIN")
        if (guarantee.radius < 0).any():
            raise CheckFailed(
                f"radii of at least 0 at the {level} level",
                f"{np.nanmin(guarantee.radius):g}",
                "set radius to NaN where nothing can be certified",
            )


@check_for(Certificate)
def check_log_radius_agrees(case: Case[Certificate]) -> None:
    """`log_radius` is the logarithm of the radius, and stays finite where that overflows."""
    for level, guarantee in trial_guarantees(case):
        usual = np.isfinite(guarantee.radius) & (guarantee.radius > 0)
        gap = np.abs(np.log(guarantee.radius[usual]) - guarantee.log_radius[usual])
        if not (gap < 1e-6).all() or (np.isnan(guarantee.log_radius) & ~np.isnan(guarantee.radius)).any():
            raise CheckFailed(
                f"log(radius) at the {level} level",
                f"a difference of {gap.max(initial=0.0):g}, or NaN",
                "compute both alike",
            )


@check_for(Certificate)
def check_stronger_threats_shrink_radii(case: Case[Certificate]) -> None:
    """No radius grows when the assumed attackers are more, poison more, come in more rounds or submit anything."""
    trial = case.once(find_trial)
    base = trial.threat
    bounded = base.model_copy(update={"delta": 0.1})
    for weaker, changes in (
        (base, {"clients": 2}),
        (base, {"poison_ratio": 0.5}),
        (base, {"scale": 3.0}),
        (base, {"rounds": (2, 3)}),
        (base, {"poison": "update"}),
        (bounded, {"delta": 1.0}),
    ):
        stronger = weaker.model_copy(update=changes)
        for level in set(trial.allowed(weaker)) & set(trial.allowed(stronger)):
            before = trial.certify(level, weaker)
            after = trial.certify(level, stronger)
            grown = ask_radius(after) > ask_radius(before) * (1 + RADIUS_TOLERANCE)
            if grown.any():
                (key, value), sample = next(iter(changes.items())), int(np.argmax(grown))
                raise CheckFailed(
                    f"radii at the {level} level that do not grow when threat.{key} becomes {value}",
                    f"{before.radius[sample]:g} that becomes {after.radius[sample]:g}",
                    f"read `{key}` from the threat: a stronger attack has a larger cost",
                )


@check_for(Certificate)
def check_surer_votes_do_not_shrink_radii(case: Case[Certificate]) -> None:
    """A prediction that the model is surer of has no smaller radius."""
    trial = case.once(find_trial)
    for level, before in trial_guarantees(case):
        after = trial.certify(level, votes=strengthen_votes(trial.votes))
        if (ask_radius(after) < ask_radius(before) * (1 - RADIUS_TOLERANCE)).any():
            raise CheckFailed(
                f"radii at the {level} level that grow with the votes for the first class",
                "smaller ones",
                "let the radius rise with p_a and fall with p_b",
            )


@check_for(Certificate)
def check_ties_certify_nothing(case: Case[Certificate]) -> None:
    """Where all classes get equal votes, nothing above a radius of 0 is certified."""
    trial = case.once(find_trial)
    for level in trial.allowed():
        radius = trial.certify(level, votes=tie_votes(trial.votes)).radius
        if (radius > 0).any():
            raise CheckFailed(
                f"no radius at the {level} level for undecided votes", f"{np.nanmax(radius):g}", "abstain if p_a <= p_b"
            )


@check_for(Certificate)
def check_refusals_help(case: Case[Certificate]) -> None:
    """Every check of the audit has a name; one that fails says what was found, and what to do about it."""
    trial = case.once(find_trial)
    for what, ledger in alter_ledgers(trial.ledger).items():
        checks = trial.audit(ledger=ledger).checks
        names = [check.name for check in checks]
        if len(set(names)) != len(names) or not all(names):
            raise CheckFailed("a name of its own for every check", f"{names}", "rename one of them")
        for check in checks:
            if check.status == "failed" and not (check.measured and check.remedy):
                raise CheckFailed(
                    f"what was measured and a remedy in {check.name!r}, which fails with {what}",
                    f"measured = {check.measured!r}, remedy = {check.remedy!r}",
                    "say what was found in the ledger, and which setting to change",
                )


@check_for(Certificate)
def check_refuses_unknown_territory(case: Case[Certificate]) -> None:
    """A sound certificate refuses a run of which nothing is known that it could rest on."""
    if not case.plugin.sound:
        raise Skipped("it does not claim to be sound")
    trial = case.once(find_trial)
    audit = trial.audit(ledger=unknown_ledger(trial.ledger))
    open_levels = [level for level in case.plugin.levels_offered if not audit.refusal and not audit.refusal_at(level)]
    if open_levels:
        raise CheckFailed(
            "a refusal of an unknown model, without noise, with weights that depend on all updates",
            f"that it certifies at the {open_levels[0]} level",
            "add a Check of status 'failed' for every assumption that the ledger contradicts",
        )


@check_for(Certificate)
def check_fitted_preprocessing_is_not_taken_as_public(case: Case[Certificate]) -> None:
    """A sound certificate about groups declares, or refuses, a scaling that is fitted to the data of all clients."""
    if not (case.plugin.sound and case.plugin.groups):
        raise Skipped("it is not a sound certificate about groups")
    trial = case.once(find_trial)
    counts = []
    for fitted in (False, True):
        checks = trial.audit(ledger=with_facts(trial.ledger, scaling_fitted=fitted)).checks
        counts.append(sum(check.status != "held" for check in checks))
    if counts[1] <= counts[0]:
        raise CheckFailed(
            "one more declared or failed assumption if the scaling is fitted to clients' data, which crosses groups",
            f"{counts[1]} of them, as many as without",
            "add assumption_checks.check_preprocessing(ledger) to the audit",
        )


@check_for(Certificate)
def check_observed_norms_are_for_pathwise_statements(case: Case[Certificate]) -> None:
    """Only a statement about this very run may use what clients really submitted; and long updates never help."""
    trial = case.once(find_trial)
    anything = trial.threat.model_copy(update={"poison": "update"})
    for level, size in product(trial.allowed(anything), SIZES):
        ledger = shorten_updates(trial.ledger, size)
        silent, loud = (with_columns(ledger, residual_norm=norms) for norms in (0.0, ledger.clients.cap))
        more, fewer = (ask_radius(trial.certify(level, anything, ledger=one)) for one in (silent, loud))
        if case.plugin.statement != "pathwise" and (more != fewer).any():
            raise CheckFailed(
                f"radii at the {level} level that do not depend on `residual_norm`",
                "others if no client submitted anything",
                "leave `observed` of DriftBound as it is: under fresh noise, clients would submit something else",
            )
        if (fewer > more * (1 + RADIUS_TOLERANCE)).any():
            raise CheckFailed(
                f"radii at the {level} level that do not grow with what clients submitted",
                "larger ones",
                "what a client submitted adds to what it costs",
            )


@check_for(Certificate)
def check_dropped_updates_end_the_forward_reading(case: Case[Certificate]) -> None:
    """Numbers that rest on weights do not hold forward where an attack could change the weight of all clients."""
    ledger = shorten_updates(case.once(find_trial).ledger, SIZES[0])
    demand_backward(
        case, "weights", scale_columns(ledger, weight_bound=1 / SIZES[0]), with_facts(ledger, bad_update="drop")
    )


@check_for(Certificate)
def check_larger_caps_end_the_forward_reading(case: Case[Certificate]) -> None:
    """Numbers that rest on caps do not hold forward under caps far above what honest clients submit, or shrink."""
    ledger = shorten_updates(case.once(find_trial).ledger, SIZES[0])
    demand_backward(case, "caps", case.once(find_trial).ledger, scale_columns(ledger, cap=SIZES[0] ** -2))


def demand_backward(case: Case[Certificate], what: str, other: Ledger, worse: Ledger) -> None:
    """Raise `CheckFailed` for a forward reading of a changed ledger.

    The numbers then depend on the ledger and still certify arbitrary updates forward.
    """
    if not case.plugin.sound:
        raise Skipped("it does not claim to be sound")
    trial = case.once(find_trial)
    anything = trial.threat.model_copy(update={"poison": "update"})
    for level in trial.allowed(anything):
        most, least, found = (
            ask_radius(trial.certify(level, anything, ledger=ledger))
            for ledger in (shorten_updates(trial.ledger, SIZES[0]), other, worse)
        )
        forward = "forward" in trial.audit(anything, worse).directions[level]
        if (most != least).any() and forward and (found > 1.0).any():
            raise CheckFailed(
                f"no forward reading at the {level} level, whose numbers depend on {what} that attacks to come can use",
                "one",
                "add forward_checks(ledger, threat) to the audit, or a failed Check with direction='forward'",
            )


@check_for(Certificate)
def check_no_known_attack_beats_it(case: Case[Certificate]) -> None:
    """No radius reaches an attack that the author's search has found."""
    if case.search is None:
        raise Skipped("no search was supplied: pass search=... to check_plugin or parametrize_with_checks")
    tried = False
    for level, guarantee in trial_guarantees(case):
        found = case.search(case.once(find_trial), level)
        if found is None:
            continue
        tried = True
        beaten = guarantee.radius >= found
        if beaten.any():
            sample = int(np.argmax(beaten))
            raise CheckFailed(
                f"a radius below {found[sample]:g} at the {level} level for sample {sample}, whose prediction "
                "an attack of this size changes",
                f"{guarantee.radius[sample]:g}",
                "the certificate is unsound: correct its formula, or set sound = False and a label",
            )
    if not tried:
        raise Skipped("the search has tried no level that is certified")


def trial_guarantees(case: Case[Certificate]) -> Iterator[tuple[Level, Guarantee]]:
    """Return the guarantees of the trial, level by level."""
    trial = case.once(find_trial)
    allowed = trial.allowed()
    if not allowed:
        refusals = "; ".join(trial.audit().refusals.values())
        raise Skipped(f"it refuses softmax regression with fedavg: {refusals}")
    return ((level, trial.certify(level)) for level in allowed)


def ask_radius(guarantee: Guarantee) -> NDArray[np.float64]:
    """Return 1 plus the radius of each prediction.

    It is 0 where a prediction has no radius.
    """
    return np.where(np.isnan(guarantee.radius), 0.0, 1.0 + guarantee.radius)
