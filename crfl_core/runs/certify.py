"""Every certificate of a config, put to one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from crfl_core.certification.certifier import Inquiry, VoteSource
from crfl_core.plugin_api.certificate import CertificateResult
from crfl_core.reporting.metrics import Curve, curves
from crfl_core.reporting.results import Results


def unwatched(certified: CertificateResult) -> None:
    """Nobody wants to see guarantees as they come."""


def certify_all(
    inquiry: Inquiry,
    source: VoteSource,
    radii: Sequence[float] | None = None,
    watch: Callable[[CertificateResult], None] = unwatched,
) -> Results:
    """The answers to all questions, one after the other; `watch` sees each guarantee as soon as it is there."""
    found: list[CertificateResult] = []
    shown: list[Curve] = []
    for question in inquiry.questions:
        answers = source(question.request, question.settings) if question.is_voted_on else {}
        own = []
        for certified in question.results(inquiry.ledger, answers):
            watch(certified)
            own.append(certified)
        found += own
        shown += curves(own, radii)
    return Results(tuple(question.audit for question in inquiry.questions), tuple(found), tuple(shown))
