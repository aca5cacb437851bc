"""Reports of runs, with their progress in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path

from crfl_reports.pages.report import NAME, is_current, write_report

REPORT = NAME
SECONDS = 60.0
"""Time in which answers for the explorer are computed."""
__all__ = ["REPORT", "SECONDS", "is_current", "write_with_progress"]


def write_with_progress(run: Path, out: Path | None = None, *, explore: float = SECONDS, trust: bool = False) -> Path:
    """Write a report; in a terminal, show how far the explorer is."""
    if not sys.stderr.isatty():
        return write_report(run, out, explore=explore, trust=trust)
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("answers for the explorer"), BarColumn(), TextColumn("{task.percentage:.0f}%"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def on_progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return write_report(run, out, explore=explore, trust=trust, progress=on_progress)
