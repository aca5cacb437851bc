"""Every certificate of a config, put to one run."""

from __future__ import annotations

from collections.abc import Iterator

from crfl_core.certification import certifier, threats
from crfl_core.certification.certifier import Audit, VoteSource
from crfl_core.config import RunConfig
from crfl_core.kinds.certificate import CertificateResult
from crfl_core.ledger import Ledger


def certify_all(
    config: RunConfig, ledger: Ledger, source: VoteSource
) -> Iterator[tuple[Audit, Iterator[CertificateResult]]]:
    """Every certificate of a config with its audit and its guarantees.

    The votes are asked for even if a certificate is refused, so that every model is voted on; only continuations
    are too dear for that.
    """
    threat, uncovered = threats.resolve(config.threat, config.attack, ledger)
    for certificate in config.certificates:
        audit = certifier.audit(certificate, ledger, threat)
        request = certifier.request_of(certificate, ledger, threat, config.votes)
        if not audit.refusal or request.kind != "continuations":
            source(request, certificate.votes.apply(config.votes))
        yield (
            audit,
            certifier.certify(certificate, audit, ledger, threat, config.votes, source, uncovered),
        )
