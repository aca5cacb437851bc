"""What a certificate assumes, evaluated on one run: what is refused, and in which direction the rest may be read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from crfl_core.certification.assumptions import trusted_data
from crfl_core.errors import OptionError, failures_named
from crfl_core.plugin_api.certificate import DIRECTIONS, Certificate, Check, Direction, Level
from crfl_core.records.ledger import Ledger
from crfl_core.records.threat import Threat


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
