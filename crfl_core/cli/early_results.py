"""Results shown as soon as they are known, before the figures are drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import PrivateAttr

from crfl_core.cli import output
from crfl_core.extend import RunContext, Tracker, hookimpl
from crfl_core.reporting.csv_files import audit_entries
from crfl_core.runs.results import RunResult


class FiguresTracker(Tracker):
    """Tracker that calls a function with the run's directory when only its figures are missing."""

    _call: Callable[[Path], None] = PrivateAttr()
    _path: Path = PrivateAttr()

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        """Remember the directory of the run."""
        self._path = run.path

    @hookimpl
    def crfl_progress(self, phase: str) -> None:
        """Show the results, which are written before figures are drawn."""
        if phase == "figures":
            self._call(self._path)


class RunDisplay:
    """Display of a run's results, once: before the figures in text, at the end as JSON."""

    def __init__(self, *, full: bool, json: bool, quiet: bool) -> None:
        self.full = full
        self.json = json
        self.quiet = quiet
        self.shown = False

    @property
    def trackers(self) -> list[Tracker]:
        """Return the trackers of the run.

        They are progress, and the one that shows results early.
        """
        if self.json or self.quiet:
            return output.progress(self.quiet)
        watching = FiguresTracker()
        watching._call = self._show_early
        return [*output.progress(self.quiet), watching.with_name("results")]  # type: ignore[list-item]  # it is a copy

    def show(self, result: RunResult) -> None:
        """Print the results of a finished run.

        If they were shown early, print only the figures' paths.
        """
        from crfl_core.reporting import terminal_tables as tables

        if not self.shown:
            output.show_run(result, quiet=self.quiet, full=self.full, json=self.json)
        elif self.full:
            tables.show_files(output.terminal(), result.path)

    def _show_early(self, path: Path) -> None:
        from crfl_core.reporting import terminal_tables as tables

        result = RunResult(path, trust=True)
        with output.restore_stdout():
            if self.full:
                tables.show_results(output.terminal(), path.name, result.metrics, audit_entries(result.audits))
            else:
                output.show_run(result)
        self.shown = True
