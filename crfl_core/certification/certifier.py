"""The questions to one run: the only place where a certificate's settings, threat, request and audit come together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from crfl_core.certification import threat_resolution as threats
from crfl_core.certification.assumption_checks import trusted_data
from crfl_core.config import RunConfig
from crfl_core.errors import OptionError, PluginFailure, failures_named
from crfl_core.plugin_api.certificate import (
    DIRECTIONS,
    Certificate,
    CertificateResult,
    Check,
    Direction,
    Guarantee,
    Level,
)
from crfl_core.records.ledger import Ledger
from crfl_core.records.threat import Threat
from crfl_core.records.votes import VoteRequest, Votes, VoteSettings

VoteSource = Callable[[VoteRequest, VoteSettings], Mapping[str, Votes]]
"""Answers a request on every test set, by name."""


@dataclass(frozen=True)
class UnknownRounds:
    """The same threat in as many rounds, of which nobody knows which they are, and what it makes of the audit."""

    threat: Threat
    audit: Audit


@dataclass(frozen=True)
class Question:
    """One certificate and all that is asked about it, once.

    `threat` is what it is handed: the assumed one, enlarged by what measuring may be off by. `uncovered` says where the
    attack that really ran goes beyond it: then the numbers answer a what-if question, and say so. `any_round` is asked
    beside it if nobody stated the rounds: those of the attack that was simulated are hardly what one wants to know.
    """

    certificate: Certificate
    settings: VoteSettings
    threat: Threat
    uncovered: tuple[str, ...]
    request: VoteRequest
    audit: Audit
    any_round: UnknownRounds | None = None

    @property
    def is_voted_on(self) -> bool:
        """Whether votes are wanted: even for a refused certificate, unless rounds would have to be trained again."""
        return not (self.audit.refusal and self.request.trains)

    def results(self, ledger: Ledger, answers: Mapping[str, Votes]) -> Iterator[CertificateResult]:
        """The guarantees for every level that is not refused, on every test set."""
        if self.audit.refusal:
            return
        excess = tuple(f"what-if, does not cover this run: {reason}" for reason in self.uncovered)
        for level in self.audit.levels:
            if self.audit.refusal_at(level):
                continue
            for name, answer in answers.items():
                yield CertificateResult(
                    certificate=self.certificate.title,
                    level=level,
                    test_set=name,
                    statement=self.certificate.statement,
                    directions=self.audit.directions_at(level),
                    clean_world=self.certificate.clean_world(self.threat),
                    label=self.certificate.label,
                    conditional=(*excess, *self.audit.conditions),
                    labels=answer.labels,
                    guarantee=certified(self.certificate, ledger, answer, self.threat, level),
                    rounds="every round" if self.certificate.round_scope() == "every" else self.threat.when,
                    any_round=self._any_round_guarantee(ledger, answer, level),
                )

    def _any_round_guarantee(self, ledger: Ledger, votes: Votes, level: Level) -> Guarantee | None:
        """The answer for unknown rounds, if it holds under the same assumptions and may be read as the other one."""
        asked = self.any_round
        if asked is None or asked.audit.refusal or asked.audit.refusal_at(level):
            return None
        if asked.audit.directions_at(level) != self.audit.directions_at(level):
            return None
        return certified(self.certificate, ledger, votes, asked.threat, level)


@dataclass(frozen=True)
class Inquiry:
    """All questions to a run. `threat` is what they assume, as it was written."""

    ledger: Ledger
    threat: Threat
    questions: tuple[Question, ...]


def ask(config: RunConfig, ledger: Ledger) -> Inquiry:
    """The questions that a config puts to a run, each built once."""
    threat, uncovered = threats.resolve(config.threat, config.attack, ledger)
    assumed = threats.enlarged(threat, ledger)

    def question(certificate: Certificate) -> Question:
        settings = certificate.votes.apply(config.votes)
        checks = audit(certificate, ledger, assumed)
        request = VoteRequest("groups" if ledger.facts.groups else "logits")
        if not misses_groups(certificate, ledger):
            with failures_named(f"certificate {certificate.full_name} failed in request"):
                request = certificate.request(ledger, assumed, settings)
        any_round = None
        unknown = in_unknown_rounds(assumed, ledger.facts.rounds)
        stated = config.threat.rounds is not None or threat.rounds == unknown.rounds
        if not stated and not checks.refusal and certificate.round_scope() == "any":
            any_round = UnknownRounds(unknown, audit(certificate, ledger, unknown))
        return Question(certificate, settings, assumed, uncovered, request, checks, any_round)

    return Inquiry(ledger, threat, tuple(map(question, config.certificates)))


def in_unknown_rounds(threat: Threat, total: int) -> Threat:
    """The same threat in as many rounds of all, nobody knows in which."""
    return threat.model_copy(update={"rounds": tuple(range(1, total + 1)), "rounds_at_most": len(threat.rounds)})


def certified(certificate: Certificate, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
    """A certificate's answer, checked: it is for every sample, and certifies nothing where it predicts nothing."""
    with failures_named(f"certificate {certificate.full_name} failed in certify"):
        guarantee = certificate.certify(ledger, votes, threat, level)
    for name, column in vars(guarantee).items():
        if column is not None and column.shape != (len(votes.labels),):
            raise PluginFailure(f"certificate {certificate.full_name}: {name} must have {len(votes.labels)} entries")
    if (~np.isnan(guarantee.radius) & guarantee.abstained).any():
        raise PluginFailure(f"certificate {certificate.full_name} has a radius where it abstains")
    return guarantee


@dataclass(frozen=True)
class Audit:
    """The checks of one certificate on one run; `levels` are those that it is asked for."""

    certificate: str
    sound: bool
    label: str
    levels: tuple[Level, ...]
    checks: tuple[Check, ...]

    @property
    def refusal(self) -> str:
        """Why the whole certificate is refused; empty if it is not."""
        return self.refusal_at(None)

    def refusal_at(self, level: Level | None) -> str:
        """Why one level of the certificate is refused, on top of the whole; empty if it is not.

        A level that may be read in neither direction says nothing, and is refused as well.
        """
        failed = [check for check in self._refusing() if check.level == level and check.direction is None]
        if self.sound and not self.directions_at(level):
            failed += [check for check in self._refusing() if check.level == level and check.direction is not None]
        return "; ".join(map(describe, failed))

    def directions_at(self, level: Level | None) -> tuple[Direction, ...]:
        """The readings of a level that hold; none for a certificate that claims no soundness.

        The forward reading is claimed only by a certificate that checks something about it.
        """
        lost = {check.direction for check in self._refusing() if check.level in (None, level)}
        stated = {"backward"} | {check.direction for check in self.checks}
        return tuple(one for one in DIRECTIONS if one in stated and one not in lost) if self.sound else ()

    @property
    def directions(self) -> dict[Level, tuple[Direction, ...]]:
        """The readings of each level that hold, none where it is refused."""
        refused = {level: self.refusal or self.refusal_at(level) for level in self.levels}
        return {level: () if refused[level] else self.directions_at(level) for level in self.levels}

    @property
    def refusals(self) -> dict[str, str]:
        """Everything that is refused, under the name it has in reports."""
        if self.refusal:
            return {self.certificate: self.refusal}
        levels = {level: self.refusal_at(level) for level in self.levels}
        return {f"{self.certificate} ({level} level)": why for level, why in levels.items() if why}

    @property
    def conditions(self) -> tuple[str, ...]:
        """What failed without refusing the certificate: its numbers are conditional on this."""
        refusing = list(self._refusing())
        return tuple(describe(check) for check in self.checks if check.status == "failed" and check not in refusing)

    def _refusing(self) -> Iterable[Check]:
        # A sound certificate has no choice: whatever fails refuses it.
        return (check for check in self.checks if check.status == "failed" and (check.refuses or self.sound))


def describe(check: Check) -> str:
    """A failed check in one sentence."""
    required = f", needs {check.required}" if check.required else ""
    remedy = f": {check.remedy}" if check.remedy else ""
    return f"{check.name}: found {check.measured}{required}{remedy}"


def audit(certificate: Certificate, ledger: Ledger, threat: Threat) -> Audit:
    """Every assumption of a certificate, evaluated on this run: of the levels that it is asked for."""
    levels = levels_of(certificate)
    with failures_named(f"certificate {certificate.full_name} failed in audit"):
        known = not misses_groups(certificate, ledger)
        checks = certificate.audit(ledger, threat) if known else (number_of_models(ledger),)
    asked = (*(check for check in checks if check.level in (None, *levels)), *trusted_data(ledger))
    return Audit(certificate.title, certificate.sound, certificate.label, levels, asked)


def misses_groups(certificate: Certificate, ledger: Ledger) -> bool:
    """Whether a certificate about one model is asked about the vote of several, or the other way round."""
    return certificate.groups != (ledger.facts.groups is not None)


def number_of_models(ledger: Ledger) -> Check:
    """The failed check of a certificate that is about another kind of run."""
    if ledger.facts.groups is None:
        return Check("groups of clients", "failed", "one model", "a model for each group", "set groups.count")
    found = f"{ledger.facts.models} groups with a model each"
    return Check("one global model", "failed", found, "a single model", "use the certificate 'group-vote'")


def levels_of(certificate: Certificate) -> tuple[Level, ...]:
    """The levels that a certificate is asked for; asking for one that it does not offer is an error."""
    for level in certificate.levels or ():
        if level not in certificate.levels_offered:
            offered = ", ".join(certificate.levels_offered)
            raise OptionError("levels", f"{certificate.title!r} has no {level!r} level: it offers {offered}")
    return certificate.levels or certificate.levels_offered
