"""Every certificate of a config, put to one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from crfl_core.certification.certifier import Audit, Certifier, VoteSource
from crfl_core.plugin_api.certificate import CertificateResult
from crfl_core.records.ledger import LedgerRecord
from crfl_core.reporting.csv_files import audit_entries, certificate_csv, metrics_json
from crfl_core.reporting.metrics import Curve, curves
from crfl_core.runs.run_directory import RunDirectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def unwatched(certified: CertificateResult) -> None:
    """Nobody wants to see guarantees as they come."""


def certify_all(
    certifier: Certifier,
    source: VoteSource,
    radii: Sequence[float] | None = None,
    watch: Callable[[CertificateResult], None] = unwatched,
) -> Results:
    """The answers to all questions, one after the other; `watch` sees each guarantee as soon as it is there."""
    found: list[CertificateResult] = []
    shown: list[Curve] = []
    for question in certifier.questions:
        answers = source(question.request, question.settings) if question.needs_votes else {}
        own = []
        for certified in certifier.certify(question, answers):
            watch(certified)
            own.append(certified)
        found += own
        shown += curves(own, radii)
    return Results(tuple(question.audit for question in certifier.questions), tuple(found), tuple(shown))


class CurveMetrics(LedgerRecord):
    """The `metrics.json` of a what-if question, which measures no model: a part of a run's."""

    curves: tuple[Curve, ...]
    refused: dict[str, str]


class WhatIfAnswer(CurveMetrics):
    """The same with what was assumed, and what had to be computed: what `crfl certify --json` prints."""

    threat: dict[str, Any]
    needs: str


@dataclass(frozen=True)
class Results:
    """The audits of all certificates, their guarantees and the curves of these."""

    audits: tuple[Audit, ...]
    certified: tuple[CertificateResult, ...]
    curves: tuple[Curve, ...]

    @property
    def refused(self) -> dict[str, str]:
        """Everything that is refused, and why."""
        return {name: reason for audit in self.audits for name, reason in audit.refusals.items()}

    def plot(self) -> Figure:
        """Certified accuracy and rate against the radius or the number of clients."""
        from crfl_reports.gallery.curves import answered

        return answered(self.curves).figure()

    def to_pandas(self, rows: Literal["curves", "samples"] = "curves") -> DataFrame:
        """A data frame with a row per point of a curve, or per guarantee of a sample. Needs pandas, an extra."""
        from crfl_core.reporting.notebooks import answers_frame

        return answers_frame(self, rows)

    def _repr_html_(self) -> str:
        from crfl_core.reporting.notebooks import answers

        return answers(self.curves, self.refused)

    def write(self, directory: RunDirectory, metrics: LedgerRecord | None = None) -> None:
        """A table per certificate, audit.json and metrics.json: the given metrics, or else the curves alone."""
        for audit in self.audits:
            if found := [one for one in self.certified if one.certificate == audit.certificate]:
                directory.write(f"certificates/{audit.certificate}.csv", certificate_csv(found))
        directory.write_json("audit.json", {"certificates": audit_entries(self.audits)})
        shown = metrics or CurveMetrics(curves=self.curves, refused=self.refused)
        directory.write("metrics.json", metrics_json(shown).encode() + b"\n")
