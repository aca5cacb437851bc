"""Tracker `progress`: progress in the terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from datetime import timedelta

from pydantic import Field, PrivateAttr

from crfl_core.extend import CertificateResult, RoundRecord, RunContext, Tracker, hookimpl, passing

PHASE_WIDTH = 12
BAR_WIDTHS = {100: 24, 70: 12}
"""How wide a bar is by the least number of columns of the terminal; in narrower ones there is no bar."""
REFRESH_SECONDS = 0.1
"""Seconds between two looks of a line in a terminal."""


class Progress(Tracker):
    """One line that says which phase is at work, how far it is and how long it still takes; where there is neither a
    terminal nor a notebook, a line now and then.
    """

    title: str = Field("", description="text in front of every line, such as the run's place among several")
    seconds: float = Field(2.0, ge=0, description="without a terminal: least number of seconds between two lines")

    _phase: str = PrivateAttr(default="")
    _began: float = PrivateAttr(default=0.0)
    _from: int = PrivateAttr(default=0)
    _last_line: float = PrivateAttr(default=float("-inf"))
    _is_live: bool = PrivateAttr(default=False)

    @hookimpl
    def crfl_progress(self, phase: str, done: int, total: int) -> None:
        """Show the phase.

        Without a terminal the phase is shown only if it takes longer than a moment.
        """
        if phase != self._phase:
            self._enter(phase, done)
        self._show(done, total, plain=f"{phase} {done}/{total}", last=False)

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        """Start or resume the count of rounds."""
        self._enter("training", run.resumed_from)
        if run.resumed_from < run.rounds:
            self._last_line = float("-inf")
            self._show(run.resumed_from, run.rounds)

    @hookimpl
    def crfl_round_finished(self, run: RunContext, record: RoundRecord) -> None:
        """Advance, with loss and accuracy of the round if they were measured.

        With several groups, these are the numbers of the first.
        """
        if record.group:
            return
        figures: Sequence[str] = ()
        if record.accuracy is not None and record.loss is not None:
            figures = f"accuracy {record.accuracy:.3f}", f"loss {record.loss:.3f}"
        plain = "  ".join([f"round {record.round}/{run.rounds}", *figures])
        self._show(record.round, run.rounds, figures, plain, last=record.round == run.rounds)

    @hookimpl
    def crfl_certified(self, certified: CertificateResult) -> None:
        """Name the guarantee that is ready."""
        self._enter("certificates", 0)
        self._show(0, 0, [f"{certified.certificate}, {certified.level} level, {certified.test_set}"])

    @hookimpl
    def crfl_run_finished(self) -> None:
        """Clear the line."""
        passing("")

    @hookimpl
    def crfl_run_failed(self) -> None:
        """Clear the line."""
        passing("")

    def _enter(self, phase: str, done: int) -> None:
        self._phase = phase
        self._from = done
        self._began = time.monotonic()
        self._is_live = passing("")
        self._last_line = float("-inf") if self._is_live else self._began

    def _show(self, done: int, total: int, figures: Sequence[str] = (), plain: str = "", *, last: bool = True) -> None:
        now = time.monotonic()
        if now < self._last_line + (REFRESH_SECONDS if self._is_live else self.seconds) and not last:
            return
        if self._is_live:
            self._last_line = now
            phase = f"{self._prefix}{self._phase:<{PHASE_WIDTH}}  "
            passing(fit_line(phase, done, total, [self._left(done, total, now), *figures]))
        elif plain:
            self._last_line = now
            sys.stderr.write(f"{self._prefix}{plain}\n")

    @property
    def _prefix(self) -> str:
        return f"{self.title}  " if self.title else ""

    def _left(self, done: int, total: int, now: float) -> str:
        """Estimate how long the phase still takes, at its rate so far."""
        if not self._from < done < total:
            return ""
        left = (now - self._began) / (done - self._from) * (total - done)
        return f"{timedelta(seconds=round(left))} left"


def fit_line(phase: str, done: int, total: int, figures: Sequence[str]) -> str:
    """Build a line of the terminal.

    It has the phase, its progress, and the figures that fit.
    """
    columns = shutil.get_terminal_size().columns
    width = next((width for least, width in BAR_WIDTHS.items() if columns >= least), 0)
    parts = [progress_bar(done, total, width), *figures] if total else [*figures]
    line = phase
    for part in filter(None, parts):
        longer = f"{line}{'' if line == phase else '  '}{part}"
        if len(longer) >= columns and line != phase:
            break
        line = longer
    return line


def progress_bar(done: int, total: int, width: int) -> str:
    """Draw progress as a bar, if `width` is positive, and in numbers.

    >>> progress_bar(3, 4, 8), progress_bar(3, 4, 0)
    ('######..  3/4', '3/4')
    """
    full = done * width // total
    return f"{'#' * full}{'.' * (width - full)}  {done}/{total}".strip()
