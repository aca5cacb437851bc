"""Guarantees and audits as files that other programs read."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from crfl_core.certification.audits import Audit
from crfl_interface.kinds.certificate import CertificateResult
from crfl_interface.ledger import Record

NUMBERS = re.compile(r"\[\n([-+.,eE\d\s]+)\]")  # not within a string, which has no line breaks in JSON
COLUMNS = (
    "sample",
    "label",
    "set",
    "certificate",
    "level",
    "statement",
    "directions",
    "prediction",
    "abstained",
    "p_a",
    "p_b",
    "radius",
    "log_radius",
    "conditional",
    "count",
    "anywhen_radius",
)
"""`anywhen_radius` is the radius against attacks in unknown rounds, as many as were asked; empty if nobody asks."""


def certificate_csv(guarantees: Sequence[CertificateResult]) -> bytes:
    """One row per guarantee and sample; empty cells where nothing is certified."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for certified in guarantees:
        writer.writerows(rows(certified))
    return buffer.getvalue().encode()


def prediction_csv(classes: NDArray[np.int64], guarantees: Sequence[CertificateResult]) -> bytes:
    """One row per input: its class, and the prediction, radius and readings of every certificate and level."""
    names, columns = ["row", "class"], [list(range(len(classes))), classes.tolist()]
    for certified in guarantees:
        guarantee, prefix = certified.guarantee, f"{certified.certificate}.{certified.level}"
        names += [f"{prefix}.prediction", f"{prefix}.radius", f"{prefix}.directions"]
        columns += [predictions(certified), cells(guarantee.radius), ["+".join(certified.directions)] * len(classes)]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(zip(*columns, strict=True))
    return buffer.getvalue().encode()


def predictions(certified: CertificateResult) -> list[str]:
    """The predicted classes; empty where the certificate abstains."""
    guarantee = certified.guarantee
    return cast("list[str]", np.where(guarantee.abstained, "", guarantee.prediction.astype(str)).tolist())


def rows(certified: CertificateResult) -> Iterable[tuple[Any, ...]]:
    """The rows of one guarantee, in the order of `COLUMNS`."""
    guarantee, anywhen, samples = certified.guarantee, certified.anywhen, len(certified.labels)

    def constant(value: object) -> list[object]:
        return [value] * samples

    return zip(
        range(samples),
        certified.labels.tolist(),
        constant(certified.test_set),
        constant(certified.certificate),
        constant(certified.level),
        constant(certified.statement),
        constant("+".join(certified.directions)),
        predictions(certified),
        guarantee.abstained.tolist(),
        cells(guarantee.p_a),
        cells(guarantee.p_b),
        cells(guarantee.radius),
        cells(guarantee.log_radius),
        constant(bool(certified.conditional or certified.label)),
        constant("") if guarantee.count is None else cells(guarantee.count),
        # The stated rounds are among the unknown ones.
        constant("") if anywhen is None else cells(np.minimum(guarantee.radius, anywhen.radius)),
        strict=True,
    )


def cells(values: NDArray[np.float64]) -> list[str]:
    """Numbers that read back to the same bits; empty for NaN."""
    return ["" if value != value else repr(value) for value in values.tolist()]


def metrics_json(metrics: Record) -> str:
    """The text of metrics.json, with every list of numbers on a line of its own instead of a line per number."""
    return NUMBERS.sub(lambda match: f"[{' '.join(match[1].split())}]", metrics.model_dump_json(indent=2))


def audit_entries(audits: Sequence[Audit]) -> list[dict[str, Any]]:
    """The audits as plain data for audit.json."""
    return [
        {
            "certificate": audit.certificate,
            "sound": audit.sound,
            "label": audit.label,
            "refused": audit.refusals,
            "directions": audit.directions,
            "checks": [vars(check) for check in audit.checks],
        }
        for audit in audits
    ]
