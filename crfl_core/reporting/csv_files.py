"""Files of guarantees and audits for other programs: CSV tables, metrics.json and audit.json."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

if TYPE_CHECKING:
    from crfl_core.certification.certifier import Audit
    from crfl_core.plugin_api.certificate import CertificateResult
    from crfl_core.records.ledger import LedgerRecord
    from crfl_core.reporting.metrics import CollectiveCurve, Curve
    from crfl_core.runs.predict import Prediction

NUMBER_LIST = re.compile(r"\[\n([-+.,eE\d\s]+)\]")  # not within a string, which has no line breaks in JSON
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
    "any_round_radius",
)
"""`any_round_radius` is the radius against attacks in any rounds, as many as the threat assumes; else empty."""


def certificate_csv(guarantees: Sequence[CertificateResult]) -> bytes:
    """Write one row per guarantee and sample.

    Cells are empty where nothing is certified.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for certified in guarantees:
        writer.writerows(guarantee_rows(certified))
    return buffer.getvalue().encode()


def collective_csv(curves: Sequence[CollectiveCurve]) -> bytes:
    """Write collective certified accuracy as CSV.

    It has one row per test set and number of clients. A cell is empty if the accuracy was not computed.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("set", "clients", "of_clients", "collective_certified_accuracy", "exact"))
    for curve in curves:
        shares = ("" if share is None else repr(share) for share in curve.collective_accuracy)
        for clients, share, exact in zip(curve.clients, shares, curve.exact, strict=True):
            writer.writerow((curve.test_set, clients, curve.of_clients, share, exact))
    return buffer.getvalue().encode()


def trigger_csv(curves: Sequence[Curve]) -> bytes:
    """Write the certified accuracy of the backdoor level as CSV.

    It has one row per test set, number of clients and trigger norm.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("set", "clients", "trigger_norm", "certified_accuracy"))
    for curve in curves:
        for clients, shares in enumerate(curve.by_clients):
            for norm, share in zip(curve.radii, shares, strict=True):
                writer.writerow((curve.test_set, clients, repr(norm), repr(share)))
    return buffer.getvalue().encode()


def prediction_csv(prediction: Prediction) -> bytes:
    """Write one row per input.

    A row has the input's class, and prediction, radius and directions of every certificate and level.
    """
    columns = prediction_columns(prediction)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return buffer.getvalue().encode()


def prediction_json(prediction: Prediction) -> bytes:
    """Write the predictions as a list of objects.

    Radii are numbers. An empty cell of the table becomes null.
    """
    columns = prediction_columns(prediction)
    for name, column in columns.items():
        if name.endswith(".prediction"):
            columns[name] = [cell or None for cell in column]
        elif name.endswith(".radius"):
            columns[name] = [float(cell) if cell else None for cell in column]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return to_json(rows, indent=2, inf_nan_mode="strings") + b"\n"


def prediction_columns(prediction: Prediction) -> dict[str, list[Any]]:
    """Return the columns of predictions, by name."""
    rows = len(prediction.classes)
    columns: dict[str, list[Any]] = {"row": list(range(rows)), "class": prediction.names}
    for certified in prediction.certified:
        prefix = f"{certified.certificate}.{certified.level}"
        cells = prediction_cells(certified)
        columns[f"{prefix}.prediction"] = [prediction.class_names[int(cell)] if cell else "" for cell in cells]
        columns[f"{prefix}.radius"] = number_cells(certified.guarantee.radius)
        columns[f"{prefix}.directions"] = ["+".join(certified.directions)] * rows
    return columns


def prediction_cells(certified: CertificateResult) -> list[str]:
    """Return the predicted classes; empty where the certificate abstains."""
    guarantee = certified.guarantee
    return cast("list[str]", np.where(guarantee.abstained, "", guarantee.prediction.astype(str)).tolist())


def guarantee_rows(certified: CertificateResult) -> Iterable[tuple[Any, ...]]:
    """Return the rows of one guarantee, in the order of `COLUMNS`."""
    guarantee = certified.guarantee
    any_round = certified.any_round
    samples = len(certified.labels)

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
        prediction_cells(certified),
        guarantee.abstained.tolist(),
        number_cells(guarantee.p_a),
        number_cells(guarantee.p_b),
        number_cells(guarantee.radius),
        number_cells(guarantee.log_radius),
        constant(bool(certified.conditional or certified.label)),
        constant("") if guarantee.count is None else number_cells(guarantee.count),
        # The stated rounds are among the unknown ones.
        constant("") if any_round is None else number_cells(np.minimum(guarantee.radius, any_round.radius)),
        strict=True,
    )


def number_cells(values: NDArray[np.float64]) -> list[str]:
    """Write numbers that read back to the same bits; empty for NaN."""
    return ["" if value != value else repr(value) for value in values.tolist()]


def metrics_json(metrics: LedgerRecord) -> str:
    """Write the text of `metrics.json`.

    Every list of numbers is on one line.
    """
    return NUMBER_LIST.sub(lambda match: f"[{' '.join(match[1].split())}]", metrics.model_dump_json(indent=2))


def audit_entries(audits: Sequence[Audit]) -> list[dict[str, Any]]:
    """Return the audits as plain data for audit.json."""
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
