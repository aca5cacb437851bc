"""The questions to one run: the only place where a certificate's settings, threat, request and audit come together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from crfl_core.certification import threat_resolution as threats
from crfl_core.certification.audits import Audit, audit, misses_groups
from crfl_core.config import RunConfig
from crfl_core.errors import PluginFailure, failures_named
from crfl_core.plugin_api.certificate import Certificate, CertificateResult, Guarantee, Level
from crfl_core.records.ledger import Ledger
from crfl_core.records.threat import Threat
from crfl_core.records.votes import VoteRequest, Votes, VoteSettings

VoteSource = Callable[[VoteRequest, VoteSettings], Mapping[str, Votes]]
"""Answers a request on every test set, by name."""


@dataclass(frozen=True)
class Anywhen:
    """The same threat in as many rounds, of which nobody knows which they are, and what it makes of the audit."""

    threat: Threat
    audit: Audit


@dataclass(frozen=True)
class Question:
    """One certificate and all that is asked about it, once.

    `threat` is what it is handed: the assumed one, enlarged by what measuring may be off by. `uncovered` says where the
    attack that really ran goes beyond it: then the numbers answer a what-if question, and say so. `anywhen` is asked
    beside it if nobody stated the rounds: those of the attack that was simulated are hardly what one wants to know.
    """

    certificate: Certificate
    settings: VoteSettings
    threat: Threat
    uncovered: tuple[str, ...]
    request: VoteRequest
    audit: Audit
    anywhen: Anywhen | None = None

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
                    rounds="every round" if self.certificate.rounds_answered() == "every" else self.threat.when,
                    anywhen=self._anywhen(ledger, answer, level),
                )

    def _anywhen(self, ledger: Ledger, votes: Votes, level: Level) -> Guarantee | None:
        """The answer for unknown rounds, if it holds under the same assumptions and may be read as the other one."""
        asked = self.anywhen
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
        anywhen = None
        unknown = in_unknown_rounds(assumed, ledger.facts.rounds)
        stated = config.threat.rounds is not None or threat.rounds == unknown.rounds
        if not stated and not checks.refusal and certificate.rounds_answered() == "any":
            anywhen = Anywhen(unknown, audit(certificate, ledger, unknown))
        return Question(certificate, settings, assumed, uncovered, request, checks, anywhen)

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
