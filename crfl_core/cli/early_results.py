"""Results are shown as soon as they are known: figures take longer to draw than results to read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import PrivateAttr

from crfl_core.cli import output
from crfl_core.extend import RunContext, Tracker, hookimpl
from crfl_core.reporting.csv_files import audit_entries
from crfl_core.runs.results import RunResult


class FiguresTracker(Tracker):
    """Calls somebody with the directory of a run when nothing but its figures is missing."""

    _call: Callable[[Path], None] = PrivateAttr()
    _path: Path = PrivateAttr()

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        """Remember where the run is."""
        self._path = run.path

    @hookimpl
    def crfl_progress(self, phase: str) -> None:
        """The results are written before figures are drawn."""
        if phase == "figures":
            self._call(self._path)


class RunDisplay:
    """Shows what a run came to, once: early if a person reads along, at the end if a program does."""

    def __init__(self, *, full: bool, json: bool, quiet: bool) -> None:
        self.full = full
        self.json = json
        self.quiet = quiet
        self.shown = False

    @property
    def trackers(self) -> list[Tracker]:
        """Who watches the run: progress, and whoever shows results early."""
        if self.json or self.quiet:
            return output.progress(self.quiet)
        watching = FiguresTracker()
        watching._call = self._show_early
        return [*output.progress(self.quiet), watching.with_name("results")]  # type: ignore[list-item]  # it is a copy

    def show(self, result: RunResult) -> None:
        """The results of a finished run, or of those that were shown what was missing: where the figures are."""
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
