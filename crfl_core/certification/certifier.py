"""Algorithm 2: from one finished run to predictions that an attack cannot change.

A certificate is a pure function of (ledger, votes, threat). For every certificate of a config:

1. Question: `build_certifier` fixes the threat, the vote settings and the vote request.
2. Audit: `audit_certificate` checks every assumption of the certificate on the ledger.
3. Votes: a `VoteSource` answers the request with the votes of the (noisy) models on every test set.
4. Guarantee: `Certifier.certify` returns the prediction and the certified radius of every sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crfl_core.certification.assumption_checks import check_trusted_code, check_trusted_data
from crfl_core.certification.threat_resolution import enlarge_threat, resolve_threat
from crfl_core.errors import OptionError, PluginFailure, wrap_failures
from crfl_core.plugin_api.certificate import (
    DIRECTIONS,
    Certificate,
    CertificateResult,
    Check,
    CollectiveGuarantee,
    Direction,
    Guarantee,
    Level,
)
from crfl_core.records.votes import VoteRequest, Votes, VoteSettings

if TYPE_CHECKING:
    from crfl_core.config import RunConfig
    from crfl_core.records.ledger import Ledger
    from crfl_core.records.threat import Threat

VoteSource = Callable[[VoteRequest, VoteSettings], Mapping[str, Votes]]
"""A function that answers a vote request on every test set, by the name of the set."""


@dataclass(frozen=True)
class Certifier:
    """The questions of one config to one run; `threat` is the assumed threat as the user wrote it.

    Guarantee for one sample at one level: if the threat covers the attack and all declared assumptions are true, no
    attack of a size up to `radius` changes `prediction`. The size is the Euclidean norm by which poisoned inputs move
    (feature level), the poisoned share of the attackers' samples (sample level), the number of malicious clients
    (client level) or the norm of a trigger on the test input, beside the threat's malicious clients (backdoor level).
    With sampled votes this holds with probability at least 1 - alpha over the noise of the votes, for each sample by
    itself; certificates that sample no votes are certain. `directions` says whether the statement is about the attack
    that this run may have seen ("backward") or about attacks that may come ("forward").
    A certificate that is not sound promises nothing of this, and its `label` says so.
    """

    ledger: Ledger
    threat: Threat
    questions: tuple[CertificateQuestion, ...]

    def certify(self, question: CertificateQuestion, votes: Mapping[str, Votes]) -> Iterator[CertificateResult]:
        """Yield the guarantees of one question.

        There is one per test set and level that the audit does not refuse.
        """
        if question.audit.refusal:
            return
        for level in question.audit.levels:
            if question.audit.refusal_at(level):
                continue
            for test_set, answer in votes.items():
                yield self._certify_level(question, level, test_set, answer)

    def certify_together(
        self, question: CertificateQuestion, votes: Votes, clients: tuple[int, ...]
    ) -> CollectiveGuarantee | None:
        """Return a guarantee about a whole labelled test set.

        It says how much stays right under one set of malicious clients. None if the client level is refused, or if the
        certificate does not know.
        """
        certificate = question.certificate
        with wrap_failures(f"certificate {certificate.full_name} failed in certify_together"):
            found = certificate.certify_together(self.ledger, votes, question.threat, clients)
        samples = len(votes.labels)
        if found is not None:
            right = [number for number in found.right if number is not None]
            if found.clients != clients or not len(clients) == len(found.right) == len(found.exact):
                raise PluginFailure(
                    f"certificate {certificate.full_name}: certify_together() must answer for {list(clients)}"
                )
            if not all(0 <= number <= samples for number in right):
                raise PluginFailure(f"certificate {certificate.full_name}: right must be 0 to {samples} samples")
        return found

    def _certify_level(
        self, question: CertificateQuestion, level: Level, test_set: str, votes: Votes
    ) -> CertificateResult:
        certificate = question.certificate
        threat = question.threat
        excess = tuple(f"what-if, does not cover this run: {reason}" for reason in question.uncovered)
        return CertificateResult(
            certificate=certificate.title,
            level=level,
            test_set=test_set,
            statement=certificate.statement,
            directions=question.audit.directions_at(level),
            clean_world=certificate.clean_world(threat),
            label=certificate.label,
            conditional=(*excess, *question.audit.conditions),
            labels=votes.labels,
            guarantee=compute_guarantee(certificate, self.ledger, votes, threat, level),
            rounds="every round" if certificate.round_scope() == "every" else threat.rounds_text,
            any_round=self._certify_any_round(question, level, votes),
            by_clients=tuple(self._certify_by_clients(question, votes)) if level == "backdoor" else (),
        )

    def _certify_by_clients(self, question: CertificateQuestion, votes: Votes) -> Iterator[Guarantee]:
        """Yield the backdoor level's guarantees for 0, 1, 2, ... clients.

        It stops when no sample is certified.
        """
        for clients in range(self.ledger.facts.clients + 1):
            threat = question.threat.model_copy(update={"clients": clients})
            guarantee = compute_guarantee(question.certificate, self.ledger, votes, threat, "backdoor")
            if clients > 0 and np.isnan(guarantee.radius).all():
                return
            yield guarantee

    def _certify_any_round(self, question: CertificateQuestion, level: Level, votes: Votes) -> Guarantee | None:
        """Return the guarantee for unknown rounds, or None.

        It must rest on the same audit result as the main guarantee.
        """
        unknown = question.any_round
        if unknown is None or unknown.audit.refusal or unknown.audit.refusal_at(level):
            return None
        if unknown.audit.directions_at(level) != question.audit.directions_at(level):
            return None
        return compute_guarantee(question.certificate, self.ledger, votes, unknown.threat, level)


@dataclass(frozen=True)
class CertificateQuestion:
    """One certificate with its threat, vote request and audit.

    `threat` is the assumed threat, enlarged by the measurement error of the ledger. `uncovered` says where the attack
    that really ran exceeds it; then the numbers answer a what-if question, and say so. `any_round` is asked in addition
    if the config names no attacked rounds: a user rarely wants to know about the rounds of one simulated attack only.
    """

    certificate: Certificate
    settings: VoteSettings
    threat: Threat
    uncovered: tuple[str, ...]
    request: VoteRequest
    audit: Audit
    any_round: UnknownRounds | None = None

    @property
    def needs_votes(self) -> bool:
        """Return whether votes are wanted.

        A refused certificate wants them too, unless they cost training.
        """
        return not (self.audit.refusal and self.request.needs_training)


@dataclass(frozen=True)
class UnknownRounds:
    """The same threat in that many unknown rounds, and its audit."""

    threat: Threat
    audit: Audit


def build_certifier(config: RunConfig, ledger: Ledger) -> Certifier:
    """Build the questions of a config to a run.

    There is one for each certificate.
    """
    threat, uncovered = resolve_threat(config.threat, config.attack, ledger)
    assumed = enlarge_threat(threat, ledger)
    unknown = assume_unknown_rounds(assumed, ledger.facts.rounds)
    rounds_are_stated = config.threat.rounds is not None or threat.rounds == unknown.rounds

    def build_question(certificate: Certificate) -> CertificateQuestion:
        settings = certificate.votes.apply(config.votes)
        audit = audit_certificate(certificate, ledger, assumed)
        request = VoteRequest("groups" if ledger.facts.groups else "logits")
        if not is_for_other_kind_of_run(certificate, ledger):
            with wrap_failures(f"certificate {certificate.full_name} failed in request"):
                request = certificate.request(ledger, assumed, settings)
        any_round = None
        if not rounds_are_stated and not audit.refusal and certificate.round_scope() == "any":
            any_round = UnknownRounds(unknown, audit_certificate(certificate, ledger, unknown))
        return CertificateQuestion(certificate, settings, assumed, uncovered, request, audit, any_round)

    return Certifier(ledger, threat, tuple(map(build_question, config.certificates)))


def assume_unknown_rounds(threat: Threat, total: int) -> Threat:
    """Return the threat with attacks in unknown rounds.

    It says in how many of all `total` rounds, but not in which.
    """
    return threat.model_copy(update={"rounds": tuple(range(1, total + 1)), "rounds_at_most": len(threat.rounds)})


def compute_guarantee(
    certificate: Certificate, ledger: Ledger, votes: Votes, threat: Threat, level: Level
) -> Guarantee:
    """Ask a certificate for its guarantee and check the answer's shape.

    Raises `PluginFailure` unless there is one entry per sample and no radius where the certificate abstains.
    """
    with wrap_failures(f"certificate {certificate.full_name} failed in certify"):
        guarantee = certificate.certify(ledger, votes, threat, level)
    for name, column in vars(guarantee).items():
        if column is not None and column.shape != (len(votes.labels),):
            raise PluginFailure(f"certificate {certificate.full_name}: {name} must have {len(votes.labels)} entries")
    if (~np.isnan(guarantee.radius) & guarantee.abstained).any():
        raise PluginFailure(f"certificate {certificate.full_name} has a radius where it abstains")
    return guarantee


@dataclass(frozen=True)
class Audit:
    """The checked assumptions of one certificate on one run; `levels` are the requested ones."""

    certificate: str
    sound: bool
    label: str
    levels: tuple[Level, ...]
    checks: tuple[Check, ...]

    @property
    def refusal(self) -> str:
        """Return why the whole certificate is refused; empty if it is not."""
        return self.refusal_at(None)

    def refusal_at(self, level: Level | None) -> str:
        """Return why one level is refused, or an empty string.

        Reasons of the whole certificate do not count. A level of a sound certificate that holds in neither direction is
        refused as well.
        """
        failed = [check for check in self._refusing_checks() if check.level == level and check.direction is None]
        if self.sound and not self.directions_at(level):
            failed += [check for check in self._refusing_checks() if check.level == level and check.direction]
        return "; ".join(map(describe_check, failed))

    def directions_at(self, level: Level | None) -> tuple[Direction, ...]:
        """Return the directions in which a level holds.

        None of them holds if the certificate is not sound. The forward direction holds only for a certificate with a
        check about it.
        """
        if not self.sound:
            return ()
        lost = {check.direction for check in self._refusing_checks() if check.level in (None, level)}
        claimed = {"backward"} | {check.direction for check in self.checks}
        return tuple(direction for direction in DIRECTIONS if direction in claimed and direction not in lost)

    @property
    def directions(self) -> dict[Level, tuple[Direction, ...]]:
        """Return the directions in which each level holds.

        A refused level holds in none.
        """
        refused = {level: self.refusal or self.refusal_at(level) for level in self.levels}
        return {level: () if refused[level] else self.directions_at(level) for level in self.levels}

    @property
    def refusals(self) -> dict[str, str]:
        """Return every reason for a refusal.

        The keys are the certificate or level, as named in reports.
        """
        if self.refusal:
            return {self.certificate: self.refusal}
        levels = {level: self.refusal_at(level) for level in self.levels}
        return {f"{self.certificate} ({level} level)": why for level, why in levels.items() if why}

    @property
    def conditions(self) -> tuple[str, ...]:
        """Return the failed checks that do not refuse.

        The numbers are conditional on them.
        """
        refusing = self._refusing_checks()
        return tuple(
            describe_check(check) for check in self.checks if check.status == "failed" and check not in refusing
        )

    def _refusing_checks(self) -> list[Check]:
        # A check cannot be waived in a sound certificate: whatever fails there refuses it.
        return [check for check in self.checks if check.status == "failed" and (check.refuses or self.sound)]


def audit_certificate(certificate: Certificate, ledger: Ledger, threat: Threat) -> Audit:
    """Check every assumption of a certificate on a run.

    Only the requested levels count.
    """
    levels = select_levels(certificate)
    with wrap_failures(f"certificate {certificate.full_name} failed in audit"):
        if is_for_other_kind_of_run(certificate, ledger):
            checks: tuple[Check, ...] = (check_kind_of_run(certificate, ledger),)
        else:
            checks = certificate.audit(ledger, threat)
    relevant = (check for check in checks if check.level in (None, *levels))
    trusted = (*check_trusted_data(ledger), *check_trusted_code(ledger, certificate))
    return Audit(certificate.title, certificate.sound, certificate.label, levels, (*relevant, *trusted))


def select_levels(certificate: Certificate) -> tuple[Level, ...]:
    """Return the requested levels of a certificate.

    By default these are all that it offers. Raises `OptionError` for a level that the certificate does not offer.
    """
    for level in certificate.levels or ():
        if level not in certificate.levels_offered:
            offered = ", ".join(certificate.levels_offered)
            raise OptionError("levels", f"{certificate.title!r} has no {level!r} level: it offers {offered}")
    return certificate.levels or certificate.levels_offered


def is_for_other_kind_of_run(certificate: Certificate, ledger: Ledger) -> bool:
    """Return whether a certificate is about another kind of run.

    A certificate about groups meets a run with one model, the other way round, or another vote.
    """
    groups = ledger.facts.groups
    return certificate.groups != (groups is not None) or (
        groups is not None and groups.voting not in certificate.votings
    )


def check_kind_of_run(certificate: Certificate, ledger: Ledger) -> Check:
    """Return the failed check for a run of another kind."""
    groups = ledger.facts.groups
    if groups is None:
        return Check("groups of clients", "failed", "one model", "a model for each group", "set groups.count")
    if certificate.groups:
        known = " or ".join(f"groups.voting = {voting!r}" for voting in certificate.votings)
        return Check("voting rule of the groups", "failed", groups.voting, known, f"train with {known}")
    found = f"{ledger.facts.models} groups with a model each"
    return Check("one global model", "failed", found, "a single model", "use the certificate 'group-vote'")


def describe_check(check: Check) -> str:
    """Describe a failed check in one sentence."""
    required = f", needs {check.required}" if check.required else ""
    remedy = f": {check.remedy}" if check.remedy else ""
    return f"{check.name}: found {check.measured}{required}{remedy}"
