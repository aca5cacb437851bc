"""What every certificate promises: the laws of a radius, and refusals that say what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import singledispatch
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from crfl_core.kinds.certificate import Certificate, Guarantee, Level, Statement
from crfl_core.ledger import ClientColumns, Ledger, ModelFacts
from crfl_core.testing.sample_run import Trial, trial_of
from crfl_core.testing.suite import Case, CheckFailed, Skipped, promised_by, used_as
from crfl_core.votes import CountVotes, ExactVotes, LogitVotes, Votes

ROUNDING = 1e-9


@used_as(Certificate)
def guarantees(certificate: Certificate, case: Case[Certificate]) -> dict[str, object]:
    """The audit and all guarantees of a finished run."""
    trial = replace(case.once(trial_of), certificate=certificate)
    return {"audit": trial.audit()} | {level: trial.certify(level) for level in trial.allowed()}


@promised_by(Certificate)
def check_claims_are_declared(case: Case[Certificate]) -> None:
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


@promised_by(Certificate)
def check_every_sample_is_answered(case: Case[Certificate]) -> None:
    """There is an answer for each sample: a known class, with bounds on probabilities within [0, 1]."""
    for level, guarantee in answers(case):
        samples = len(case.once(trial_of).votes.labels)
        for name, column in vars(guarantee).items():
            if column is not None and np.shape(column) != (samples,):
                raise CheckFailed(f"{samples} entries in {name}", f"{np.shape(column)}", "answer for every sample")
        known = (guarantee.prediction >= -1) & (guarantee.prediction < case.once(trial_of).ledger.facts.classes)
        if not known.all():
            raise CheckFailed(
                f"classes or ABSTAIN at the {level} level",
                f"{guarantee.prediction[~known][0]}",
                "predict a label, or -1",
            )
        for name, bound in (("p_a", guarantee.p_a), ("p_b", guarantee.p_b)):
            if bool(((bound < 0) | (bound > 1)).any()):
                raise CheckFailed(f"{name} within [0, 1], or NaN", f"{bound.min()} to {bound.max()}", "clip the bound")


@promised_by(Certificate)
def check_nothing_is_certified_without_a_prediction(case: Case[Certificate]) -> None:
    """Where it abstains there is no radius; any other is a number of at least 0, or NaN where nothing is certified."""
    for level, guarantee in answers(case):
        if not np.isnan(guarantee.radius[guarantee.abstained]).all():
            raise CheckFailed("no radius where it abstains", "one", "set radius to NaN where prediction is ABSTAIN")
        if (guarantee.radius < 0).any():
            raise CheckFailed(
                f"radii of at least 0 at the {level} level",
                f"{np.nanmin(guarantee.radius):g}",
                "set radius to NaN where nothing can be certified",
            )


@promised_by(Certificate)
def check_log_radius_agrees(case: Case[Certificate]) -> None:
    """`log_radius` is the logarithm of the radius, and stays finite where that overflows."""
    for level, guarantee in answers(case):
        usual = np.isfinite(guarantee.radius) & (guarantee.radius > 0)
        gap = np.abs(np.log(guarantee.radius[usual]) - guarantee.log_radius[usual])
        if not (gap < 1e-6).all() or (np.isnan(guarantee.log_radius) & ~np.isnan(guarantee.radius)).any():
            raise CheckFailed(
                f"log(radius) at the {level} level",
                f"a difference of {gap.max(initial=0.0):g}, or NaN",
                "compute both alike",
            )


@promised_by(Certificate)
def check_stronger_threats_shrink_radii(case: Case[Certificate]) -> None:
    """No radius grows when the assumed attackers are more, poison more, come in more rounds or submit anything."""
    trial = case.once(trial_of)
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
            before, after = trial.certify(level, weaker), trial.certify(level, stronger)
            grown = certified(after) > certified(before) * (1 + ROUNDING)
            if grown.any():
                (key, value), sample = next(iter(changes.items())), int(np.argmax(grown))
                raise CheckFailed(
                    f"radii at the {level} level that do not grow when threat.{key} becomes {value}",
                    f"{before.radius[sample]:g} that becomes {after.radius[sample]:g}",
                    f"read `{key}` from the threat: a stronger attack has a larger cost",
                )


@promised_by(Certificate)
def check_surer_votes_do_not_shrink_radii(case: Case[Certificate]) -> None:
    """A prediction that the model is surer of has no smaller radius."""
    trial = case.once(trial_of)
    for level, before in answers(case):
        after = trial.certify(level, votes=surer(trial.votes))
        if (certified(after) < certified(before) * (1 - ROUNDING)).any():
            raise CheckFailed(
                f"radii at the {level} level that grow with the votes for the first class",
                "smaller ones",
                "let the radius rise with p_a and fall with p_b",
            )


@promised_by(Certificate)
def check_ties_certify_nothing(case: Case[Certificate]) -> None:
    """Where all classes get equal votes, nothing above a radius of 0 is certified."""
    trial = case.once(trial_of)
    for level in trial.allowed():
        radius = trial.certify(level, votes=tied(trial.votes)).radius
        if (radius > 0).any():
            raise CheckFailed(
                f"no radius at the {level} level for undecided votes", f"{np.nanmax(radius):g}", "abstain if p_a <= p_b"
            )


@promised_by(Certificate)
def check_refusals_help(case: Case[Certificate]) -> None:
    """Every check of the audit has a name; one that fails says what was found, and what to do about it."""
    trial = case.once(trial_of)
    for what, ledger in ledgers(trial).items():
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


@promised_by(Certificate)
def check_unknown_territory_is_refused(case: Case[Certificate]) -> None:
    """A sound certificate refuses a run of which nothing is known that it could rest on."""
    if not case.plugin.sound:
        raise Skipped("it does not claim to be sound")
    trial = case.once(trial_of)
    audit = trial.audit(ledger=unknown(trial.ledger))
    open_levels = [level for level in case.plugin.levels_offered if not audit.refusal and not audit.refusal_at(level)]
    if open_levels:
        raise CheckFailed(
            "a refusal of an unknown model, without noise, with weights that depend on all updates",
            f"that it certifies at the {open_levels[0]} level",
            "add a Check of status 'failed' for every assumption that the ledger contradicts",
        )


@promised_by(Certificate)
def check_no_known_attack_beats_it(case: Case[Certificate]) -> None:
    """No radius reaches an attack that the author's search has found."""
    if case.search is None:
        raise Skipped("no search was supplied: pass search=... to check_plugin or parametrize_with_checks")
    tried = False
    for level, guarantee in answers(case):
        found = case.search(case.once(trial_of), level)
        if found is None:
            continue
        tried, beaten = True, guarantee.radius >= found
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


def answers(case: Case[Certificate]) -> Iterator[tuple[Level, Guarantee]]:
    """The guarantees of the trial, level by level."""
    trial = case.once(trial_of)
    allowed = trial.allowed()
    if not allowed:
        refusals = "; ".join(trial.audit().refusals.values())
        raise Skipped(f"it refuses softmax regression with fedavg: {refusals}")
    return ((level, trial.certify(level)) for level in allowed)


def certified(guarantee: Guarantee) -> NDArray[np.float64]:
    """How far each prediction is certified: 0 where there is no radius, and 1 more than the radius elsewhere."""
    return np.where(np.isnan(guarantee.radius), 0.0, 1.0 + guarantee.radius)


@singledispatch
def surer(votes: Votes) -> Votes:
    """Votes that leave less doubt about the same first class."""
    raise NotImplementedError(type(votes).__name__)


@surer.register
def _(votes: LogitVotes) -> Votes:
    return replace(votes, logits=2.0 * votes.logits)


@surer.register
def _(votes: CountVotes) -> Votes:
    chosen = votes.selection if votes.request.selection_models else votes.counts
    winners = np.eye(chosen.shape[1], dtype=np.int64)[chosen.argmax(1)]
    totals = (winners * part.sum(1, keepdims=True) for part in (votes.counts, votes.selection))
    return replace(votes, **dict(zip(("counts", "selection"), totals, strict=True)))


@surer.register
def _(votes: ExactVotes) -> Votes:
    rest = 2.0 * votes.log_rest
    return replace(votes, log_rest=rest, log_p_b=2.0 * votes.log_p_b, log_p_a=np.log1p(-np.exp(rest)))


@singledispatch
def tied(votes: Votes) -> Votes:
    """Votes that are divided equally among all classes."""
    raise NotImplementedError(type(votes).__name__)


@tied.register
def _(votes: LogitVotes) -> Votes:
    return replace(votes, logits=np.zeros_like(votes.logits))


@tied.register
def _(votes: CountVotes) -> Votes:
    even = {
        name: np.zeros_like(part) + part.sum(1, keepdims=True) // part.shape[1]
        for name, part in (("counts", votes.counts), ("selection", votes.selection))
    }
    return replace(votes, **even)


@tied.register
def _(votes: ExactVotes) -> Votes:
    half = np.full_like(votes.log_p_a, math.log(0.5))
    return replace(votes, log_p_a=half, log_p_b=half, log_rest=half)


def ledgers(trial: Trial) -> dict[str, Ledger]:
    """Runs that break one assumption or another, and one that breaks all."""
    ledger = trial.ledger
    return {
        "an ordinary run": ledger,
        "an unknown model": with_facts(ledger, model_facts=ModelFacts(linear=False, convex=False, bias=True)),
        "unbounded inputs": with_facts(ledger, input_norm_bound=math.inf, feature_norm_bound=math.inf),
        "a map without a Lipschitz constant": with_facts(ledger, feature_lipschitz=None),
        "weights that depend on all updates": with_rounds(ledger, depends="all"),
        "rejected rounds": with_rounds(with_facts(ledger, rejects=True), accepted=False),
        "no noise": with_rounds(with_facts(ledger, test_noise_std=0.0), noise_std=0.0),
        "no models kept": with_facts(ledger, resampled=()),
        "nothing known at all": unknown(ledger),
    }


def unknown(ledger: Ledger) -> Ledger:
    """A run that no proof covers."""
    blind = with_facts(
        ledger,
        model_facts=ModelFacts(linear=False, convex=False, bias=True, loss="unknown"),
        input_norm_bound=math.inf,
        feature_norm_bound=math.inf,
        feature_lipschitz=None,
        test_noise_std=0.0,
        rejects=True,
        resampled=(),
    )
    blind = with_rounds(blind, depends="all", accepted=False, noise_std=0.0, breakdown=None, carries_state=True)
    nothing = np.full(len(ledger.clients), np.inf)
    columns = {**vars(blind.clients), "cap": nothing, "update_bound": nothing}
    return replace(blind, clients=ClientColumns(**columns))


def with_facts(ledger: Ledger, **changes: Any) -> Ledger:
    """The ledger with other static facts."""
    return replace(ledger, facts=ledger.facts.model_copy(update=changes))


def with_rounds(ledger: Ledger, **changes: Any) -> Ledger:
    """The ledger with other facts in every round."""
    return replace(ledger, rounds=tuple(record.model_copy(update=changes) for record in ledger.rounds))
