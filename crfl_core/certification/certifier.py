"""Puts every certificate's questions to a run: audit first, then votes, then the guarantee."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crfl_core.errors import OptionError, PluginFailure, failures_named
from crfl_core.kinds.certificate import Certificate, CertificateResult, Check, Guarantee, Level
from crfl_core.ledger import Ledger
from crfl_core.threat import Threat
from crfl_core.votes import VoteRequest, Votes, VoteSettings

VoteSource = Callable[[VoteRequest, VoteSettings], Mapping[str, Votes]]
"""Answers a request on every test set, by name."""


@dataclass(frozen=True)
class Audit:
    """The checks of one certificate on one run."""

    certificate: str
    sound: bool
    label: str
    checks: tuple[Check, ...]

    @property
    def refusal(self) -> str:
        """Why the whole certificate is refused; empty if it is not."""
        return self.refusal_at(None)

    def refusal_at(self, level: Level | None) -> str:
        """Why one level of the certificate is refused, on top of the whole; empty if it is not."""
        return "; ".join(describe(check) for check in self.checks if self._refuses(check) and check.level == level)

    @property
    def refusals(self) -> dict[str, str]:
        """Everything that is refused, under the name it has in reports."""
        if self.refusal:
            return {self.certificate: self.refusal}
        levels = {check.level for check in self.checks if check.level is not None}
        return {f"{self.certificate} ({level} level)": why for level in levels if (why := self.refusal_at(level))}

    @property
    def conditions(self) -> tuple[str, ...]:
        """What failed without refusing the certificate: its numbers are conditional on this."""
        return tuple(describe(check) for check in self.checks if check.status == "failed" and not self._refuses(check))

    def _refuses(self, check: Check) -> bool:
        # A sound certificate has no choice: whatever fails refuses it.
        return check.status == "failed" and (check.refuses or self.sound)


def describe(check: Check) -> str:
    """A failed check in one sentence."""
    required = f", needs {check.required}" if check.required else ""
    remedy = f": {check.remedy}" if check.remedy else ""
    return f"{check.name}: found {check.measured}{required}{remedy}"


def audit(certificate: Certificate, ledger: Ledger, threat: Threat) -> Audit:
    """Every assumption of a certificate, evaluated on this run."""
    with failures_named(f"certificate {certificate.full_name} failed in audit"):
        checks = certificate.audit(ledger, threat)
    return Audit(certificate.title, certificate.sound, certificate.label, checks)


def request_of(certificate: Certificate, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:
    """What a certificate wants to know."""
    with failures_named(f"certificate {certificate.full_name} failed in request"):
        return certificate.request(ledger, threat, certificate.votes.apply(settings))


def certify(
    certificate: Certificate,
    result: Audit,
    ledger: Ledger,
    threat: Threat,
    settings: VoteSettings,
    votes: VoteSource,
    uncovered: Sequence[str] = (),
) -> Iterator[CertificateResult]:
    """The guarantees of one certificate, for every level it is asked for and every test set; none if refused.

    `uncovered` says where the attack that really ran goes beyond the threat: then the numbers answer a what-if
    question and do not cover this run, and say so.
    """
    if result.refusal:
        return
    settings = certificate.votes.apply(settings)
    conditional = (
        *(f"what-if, does not cover this run: {excess}" for excess in uncovered),
        *result.conditions,
    )
    answers = votes(request_of(certificate, ledger, threat, settings), settings)
    for level in levels_of(certificate):
        if result.refusal_at(level):
            continue
        for name, answer in answers.items():
            with failures_named(f"certificate {certificate.full_name} failed in certify"):
                guarantee = certificate.certify(ledger, answer, threat, level)
            check_guarantee(certificate, guarantee, len(answer.labels))
            yield CertificateResult(
                certificate=certificate.title,
                level=level,
                test_set=name,
                statement=certificate.statement,
                clean_world=certificate.clean_world(threat),
                label=certificate.label,
                conditional=conditional,
                labels=answer.labels,
                guarantee=guarantee,
            )


def levels_of(certificate: Certificate) -> tuple[Level, ...]:
    """The levels that a certificate is asked for; asking for one that it does not offer is an error."""
    for level in certificate.levels or ():
        if level not in certificate.levels_offered:
            offered = ", ".join(certificate.levels_offered)
            raise OptionError("levels", f"{certificate.title!r} has no {level!r} level: it offers {offered}")
    return certificate.levels or certificate.levels_offered


def check_guarantee(certificate: Certificate, guarantee: Guarantee, samples: int) -> None:
    """A plugin's answer must be for every sample, and certify nothing where it predicts nothing."""
    for name, column in vars(guarantee).items():
        if column is not None and column.shape != (samples,):
            raise PluginFailure(f"certificate {certificate.full_name}: {name} must have {samples} entries")
    if (~np.isnan(guarantee.radius) & guarantee.abstained).any():
        raise PluginFailure(f"certificate {certificate.full_name} has a radius where it abstains")
