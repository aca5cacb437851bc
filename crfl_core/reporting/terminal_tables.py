"""Full report of a finished run as terminal tables; plain text where there is no terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from crfl_core.certification.levels import LEVEL_WORDS
from crfl_core.reporting.metrics import CollectiveCurve, Curve, Metrics, table_key
from crfl_core.reporting.verdict import attack_text, run_verdict, statement_text

WIDE_TERMINAL_COLUMNS = 100
"""Terminals with fewer columns have no room for four of text."""
STATUS_STYLES = {
    "held": "green",
    "declared": "yellow",
    "failed": "red",
    "not forward": "yellow",
    "not backward": "yellow",
}


def show_everything(console: Console, name: str, metrics: Metrics, audit: Sequence[dict[str, Any]], path: Path) -> None:
    """Print the full report at the end of a run."""
    show_results(console, name, metrics, audit)
    show_files(console, path)


def show_results(console: Console, name: str, metrics: Metrics, audit: Sequence[dict[str, Any]]) -> None:
    """Print the trained model and what is certified about it."""
    console.print(Text(run_verdict(metrics, audit), style="bold"))
    console.print(headline(name, metrics))
    show_guarantees(console, metrics.curves, audit, metrics.collective)


def show_files(console: Console, path: Path) -> None:
    """Print where the figures and the run directory are."""
    if figures := sorted(map(str, path.glob("figures/*"))):
        console.print(Text(f"figures: {', '.join(figures)}"), soft_wrap=True)
    console.print(Text.assemble("run directory: ", (str(path), "bold")), soft_wrap=True)


def show_guarantees(
    console: Console,
    curves: Sequence[Curve],
    audit: Sequence[dict[str, Any]],
    collective: Sequence[CollectiveCurve] = (),
) -> None:
    """Print every assumption, the refused certificates, and what the others guarantee."""
    console.print(audit_table(audit, console.width))
    for entry in audit:
        for name, reason in entry["refused"].items():
            console.print(Text(f"certificate {name} refused: {reason}", style="red"))
    for _, together in groupby(curves, key=table_key):
        of_level = list(together)
        console.print(curve_table(of_level))
        for note in footnotes(of_level):
            console.print(Text(note, style="yellow"))
    for one in collective:
        console.print(collective_table(one))
        for number in one.clients:
            console.print(Text(f"  {one.sentence(number)}", style="yellow"), soft_wrap=True)


def collective_table(curve: CollectiveCurve) -> RenderableType:
    """Return collective certified accuracy by the number of malicious clients."""
    title = f"{curve.certificate}: collective certified accuracy, one set of clients attacks all samples"
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    for heading in ("clients", f"stays right\n{curve.test_set}", "exact"):
        table.add_column(heading, justify="right")
    for number, share, exact in zip(curve.clients, curve.collective_accuracy, curve.exact, strict=True):
        shown = "not computed" if share is None else f"{share:.3f}"
        table.add_row(str(number), shown, "" if share is None else "yes" if exact else "at least")
    return table


def headline(name: str, metrics: Metrics) -> RenderableType:
    """Return a table of the trained model.

    It has clients, accuracy and attack success rate.
    """
    sizes = metrics.partition.sizes
    table = Table(title=f"{name}: the trained model", box=box.SIMPLE, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("clients", str(len(sizes)))
    table.add_row("training samples of a client", f"{min(sizes)} to {max(sizes)}")
    table.add_row("attack", attack_text(metrics.attackers, metrics.partition.clients))
    table.add_row("clean accuracy", f"{metrics.accuracy:.3f}")
    if metrics.voting is not None:
        table.add_row("vote of the groups", metrics.voting)
    table.add_row("clean loss", f"{metrics.loss:.3f}")
    if metrics.trusted_baseline is not None:
        own = metrics.trusted_baseline
        table.add_row(f"accuracy of the server alone, on its {own.samples} labelled samples", f"{own.accuracy:.3f}")
    if metrics.backdoor is not None:
        backdoor = metrics.backdoor
        table.add_row(f"attack success rate (class {backdoor.target})", f"{backdoor.success_rate:.3f}")
        table.add_row("the same without the backdoor", f"{backdoor.clean_rate:.3f}")
    if metrics.attackers is not None:
        shares = metrics.attackers
        table.add_row("attackers' share of the weights", format_weight_share(shares.mean_weight_share))
        if len(shares.rounds) > 1:
            table.add_row(
                f"the largest in {len(shares.rounds)} attacked rounds", format_weight_share(shares.largest_weight_share)
            )
    return table


def format_weight_share(value: float | None) -> str:
    """Format a share of the weights.

    `value` is None if the weights do not determine the aggregate.
    """
    return "not in the weights" if value is None else f"{value:.3f}"


def effect_table(effect: Mapping[str, float | None]) -> RenderableType:
    """Return a table of the attacked model beside the clean one.

    The clean model was trained without the attack.
    """
    table = Table(title="what the attack changed", box=box.SIMPLE, title_justify="left")
    for column in ("", "attacked model", "clean model"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("accuracy", f"{effect['accuracy']:.3f}", f"{effect['clean_accuracy']:.3f}")
    if effect["success_rate"] is not None:
        rates = (f"{effect['success_rate']:.3f}", f"{effect['clean_rate']:.3f}")
        table.add_row("backdoored inputs taken for the target", *rates)
    return table


def curve_table(curves: Sequence[Curve]) -> RenderableType:
    """Return certified accuracy by radius.

    It has a column for every test set of one certificate and level. For attacks in any round first, if that was asked,
    and beside it for the rounds of the attack; else the rate.
    """
    first = curves[0]
    label = f" ({first.label})" if first.label else ""
    radius = LEVEL_WORDS[first.level].unit
    table = Table(title=f"{first.certificate}{label}: {first.level} level", box=box.SIMPLE, title_justify="left")
    table.add_column(radius, justify="right")
    if first.by_clients:
        return add_client_columns(table, first)
    for curve in curves:
        for name, _ in share_columns(curve):
            table.add_column(f"{name}\n{curve.test_set}", justify="right", overflow="fold")
    columns = [values for curve in curves for _, values in share_columns(curve)]
    for row, value in enumerate(first.radii):
        table.add_row(f"{value:g}", *(f"{values[row]:.3f}" for values in columns))
    return table


def add_client_columns(table: Table, curve: Curve) -> Table:
    """Add the backdoor level's certified accuracy by malicious clients.

    It is that on the clean test set.
    """
    for clients in range(len(curve.by_clients)):
        table.add_column(f"{clients} client{'s' if clients != 1 else ''}", justify="right")
    for row, norm in enumerate(curve.radii):
        table.add_row(f"{norm:g}", *(f"{shares[row]:.3f}" for shares in curve.by_clients))
    return table


def share_columns(curve: Curve) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Return the two columns of one test set, with their headings."""
    if curve.any_round_accuracy:
        unknown = "any round" if curve.rounds.startswith("round ") else "any such rounds"
        accuracy = "certified accuracy\n"
        known = (accuracy + curve.rounds, curve.certified_accuracy)
        if curve.any_round_accuracy == curve.certified_accuracy:
            known = (f"certified rate\n{unknown}", curve.any_round_rate)
        return (accuracy + unknown, curve.any_round_accuracy), known
    return ("certified accuracy", curve.certified_accuracy), ("certified rate", curve.certified_rate)


def footnotes(curves: Sequence[Curve]) -> list[str]:
    """Return what the numbers of a table depend on."""
    first = curves[0]
    notes = [f"  {statement_text(first)}"]
    if first.rounds and not first.any_round_accuracy:
        notes[0] += f"; attacks in {first.rounds}"
    notes += [
        f"  {curve.test_set}: {curve.samples} samples, accuracy {curve.accuracy:.3f}, abstained on "
        f"{curve.abstained:.1%}, median radius "
        f"{'none' if curve.median_radius is None else format(curve.median_radius, '.3g')}"
        for curve in curves
    ]
    return notes + [f"  conditional: {condition}" for condition in first.conditional]


def audit_table(audit: Sequence[dict[str, Any]], width: int) -> RenderableType:
    """Return the assumptions of all certificates.

    Shared ones appear once. Narrow terminals get a list.
    """
    users: dict[tuple[str, ...], list[str]] = {}
    for entry in audit:
        for check in entry["checks"]:
            status = check["status"]
            if status == "failed" and check["direction"] is not None:
                status = f"not {check['direction']}"
            key = (check["name"], status, check["measured"], check["required"])
            users.setdefault(key, []).append(entry["certificate"])
    table = Table(title="audit", box=box.SIMPLE, title_justify="left")
    for column in (
        ("assumption", "status", "found", "by") if width >= WIDE_TERMINAL_COLUMNS else ("status", "assumption")
    ):
        table.add_column(column, overflow="fold")
    for (name, status, found, needed), names in users.items():
        by = "all" if len(names) == len(audit) > 1 else ", ".join(names)
        shown = found if status in ("held", "declared") else f"{found}; needed: {needed}"
        judged = Text(status, style=STATUS_STYLES[status])
        if width >= WIDE_TERMINAL_COLUMNS:
            table.add_row(name, judged, shown, by)
        else:
            table.add_row(judged, Text(f"{name}: {shown} ({by})" if shown else f"{name} ({by})"))
    return table
