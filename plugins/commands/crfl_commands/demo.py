"""`crfl demo`: what this is for, in a minute."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crfl_core.extend import JsonOption, QuietOption

if TYPE_CHECKING:
    from crfl_core import RunResult

EXPLORE = 10.0
"""Seconds for the explorer of the report."""

Out = Annotated[Path, typer.Option("--out", help="Folder for the three runs of the demo.")]


def demo(out: Out = Path("runs/demo"), json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Attack the same federation without a defence, with one, and with a certificate, and show what comes of it."""
    from crfl_commands.story import ROWS, told
    from crfl_commands.story.telling import CONFIG
    from crfl_core import run
    from crfl_core.extend import passing, progress
    from crfl_pages import write_report

    results: list[RunResult] = []
    for row in ROWS:
        trackers = progress(quiet or json)
        results.append(run(CONFIG, overrides=row.overrides, out=out / row.name, force=True, trackers=trackers))
    passing("")
    if json:
        from pydantic_core import to_json

        typer.echo(to_json({row.name: result.metrics for row, result in zip(ROWS, results, strict=True)}, indent=2))
        return
    plain = "utf" not in (sys.stdout.encoding or "").lower()
    for line in told(results, plain=plain):
        typer.echo(line)
    typer.echo(f"\nReport: {write_report(out / 'certified', explore=EXPLORE)}")
    shown = f"crfl show {out / 'certified'}"
    typer.echo(f"Next: {shown:<28}  what it rests on")
    typer.echo(f"      {'crfl run':<28}  a federation of yours: give it a config file")
    typer.echo(f"      {'crfl advise':<28}  which certificate answers your question")
