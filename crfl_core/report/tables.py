"""Tables for the terminal; plain text where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from crfl_core.certification.metrics import Curve, Metrics

STATUS_STYLES = {"held": "green", "declared": "yellow", "failed": "red"}


def show(console: Console, name: str, metrics: Metrics, audit: Sequence[dict[str, Any]], path: Path) -> None:
    """Everything a person wants to see at the end of a run."""
    console.print(headline(name, metrics))
    for part in (curve for curve in metrics.curves):
        console.print(curve_table(part))
        for note in footnotes(part):
            console.print(Text(note, style="yellow"))
    for certificate, reason in metrics.refused.items():
        console.print(Text(f"certificate {certificate!r} refused: {reason}", style="red"))
    for entry in audit:
        console.print(audit_table(entry))
    console.print(Text.assemble("run directory: ", (str(path), "bold")), soft_wrap=True)


def headline(name: str, metrics: Metrics) -> RenderableType:
    """Accuracy and backdoor success of the trained model."""
    table = Table(title=f"{name}: the trained model", box=box.SIMPLE, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("clean accuracy", f"{metrics.accuracy:.3f}")
    table.add_row("clean loss", f"{metrics.loss:.3f}")
    if metrics.backdoor is not None:
        backdoor = metrics.backdoor
        table.add_row(f"taken for class {backdoor.target} with the trigger", f"{backdoor.success_rate:.3f}")
        table.add_row(f"taken for class {backdoor.target} without it", f"{backdoor.clean_rate:.3f}")
    return table


def curve_table(curve: Curve) -> RenderableType:
    """Certified accuracy and rate against the radius."""
    label = f" ({curve.label})" if curve.label else ""
    table = Table(
        title=f"certificate {curve.certificate}{label}: {curve.level} level, {curve.test_set} test set",
        box=box.SIMPLE,
        title_justify="left",
    )
    table.add_column("radius", justify="right")
    table.add_column("certified accuracy", justify="right")
    table.add_column("certified rate", justify="right")
    for radius, accuracy, rate in zip(curve.radii, curve.certified_accuracy, curve.certified_rate, strict=True):
        table.add_row(f"{radius:g}", f"{accuracy:.3f}", f"{rate:.3f}")
    return table


def footnotes(curve: Curve) -> list[str]:
    """What the numbers of a curve hang on."""
    notes = [
        f"  {curve.statement} statement, compared with the {curve.clean_world} clean world; {curve.samples} samples, "
        f"abstained on {curve.abstained:.1%}, median radius {curve.median_radius:.3g}"
    ]
    return notes + [f"  conditional: {condition}" for condition in curve.conditional]


def audit_table(entry: dict[str, Any]) -> RenderableType:
    """The assumptions of one certificate."""
    table = Table(title=f"audit of {entry['certificate']}", box=box.SIMPLE, title_justify="left")
    for column in ("assumption", "status", "found", "needed"):
        table.add_column(column, overflow="fold")
    for check in entry["checks"]:
        style = STATUS_STYLES[check["status"]]
        table.add_row(check["name"], Text(check["status"], style=style), check["measured"], check["required"])
    return table
