"""Reports of runs, with their progress in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import crfl_reports.pages
from crfl_reports.commands.report import SECONDS

REPORT = crfl_reports.pages.NAME


def write_with_progress(run: Path, out: Path | None = None, *, explore: float = SECONDS, trust: bool = False) -> Path:
    """Write a report; in a terminal, show how far the explorer is."""
    if not sys.stderr.isatty():
        return crfl_reports.pages.write_report(run, out, explore=explore, trust=trust)
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("answers for the explorer"), BarColumn(), TextColumn("{task.percentage:.0f}%"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=None)

        def told(done: int, total: int) -> None:
            shown.update(task, completed=done, total=total)

        return crfl_reports.pages.write_report(run, out, explore=explore, trust=trust, progress=told)


def is_current(run: Path) -> bool:
    """Return whether a report exists and is younger than the run, or every run of the folder."""
    report = run / REPORT
    if not report.is_file():
        return False
    states = [run / "status.json", *run.glob("*/status.json"), *run.glob("cells/*/status.json")]
    return all(report.stat().st_mtime >= state.stat().st_mtime for state in states if state.is_file())
