"""Progress in the terminal."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

from pydantic import Field, PrivateAttr

from crfl_core.extend import CertificateResult, RoundRecord, RunContext, Tracker, hookimpl, passing

NAME, BAR = 14, 24
REFRESH = 0.1
"""Seconds between two looks of a line in a terminal."""


class Progress(Tracker):
    """One line that says which phase is at work, how far it is and how long it still takes; where there is no terminal,
    a line now and then.
    """

    seconds: float = Field(2.0, ge=0, description="without a terminal: least number of seconds between two lines")

    _phase: str = PrivateAttr(default="")
    _began: float = PrivateAttr(default=0.0)
    _from: int = PrivateAttr(default=0)
    _last_line: float = PrivateAttr(default=float("-inf"))

    @hookimpl
    def crfl_working(self, phase: str, done: int, total: int) -> None:
        """Show the phase; without a terminal only if it takes longer than a moment."""
        if phase != self._phase:
            self._enter(phase, done)
        self._show(done, total, plain=f"{phase} {done}/{total}", last=False)

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        """The rounds begin, or go on."""
        self._enter("training", run.resumed_from)
        if run.resumed_from < run.rounds:
            self._last_line = float("-inf")
            self._show(run.resumed_from, run.rounds)

    @hookimpl
    def crfl_round_finished(self, run: RunContext, record: RoundRecord) -> None:
        """Advance, with loss and accuracy of the round if they were measured; of several groups, those of the first."""
        if record.group:
            return
        figures = ""
        if record.accuracy is not None and record.loss is not None:
            figures = f"loss {record.loss:.3f}  accuracy {record.accuracy:.3f}"
        plain = f"round {record.round}/{run.rounds}  {figures}".rstrip()
        self._show(record.round, run.rounds, figures, plain, last=record.round == run.rounds)

    @hookimpl
    def crfl_certified(self, certified: CertificateResult) -> None:
        """Name the guarantee that is ready."""
        self._enter("certificates", 0)
        self._show(0, 0, f"{certified.certificate}, {certified.level} level, {certified.test_set}")

    @hookimpl
    def crfl_run_finished(self) -> None:
        """Take the line away."""
        passing("")

    @hookimpl
    def crfl_run_failed(self) -> None:
        """Take the line away."""
        passing("")

    def _enter(self, phase: str, done: int) -> None:
        self._phase, self._from, self._began = phase, done, time.monotonic()
        self._last_line = float("-inf") if sys.stderr.isatty() else self._began

    def _show(self, done: int, total: int, figures: str = "", plain: str = "", *, last: bool = True) -> None:
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if now < self._last_line + (REFRESH if terminal else self.seconds) and not last:
            return
        if terminal:
            self._last_line = now
            passing(f"{self._phase:<{NAME}}{bar(done, total)}  {self._left(done, total, now)}  {figures}".rstrip())
        elif plain:
            self._last_line = now
            sys.stderr.write(f"{plain}\n")

    def _left(self, done: int, total: int, now: float) -> str:
        """How long the phase still takes, if it goes on as it began."""
        if not self._from < done < total:
            return ""
        left = (now - self._began) / (done - self._from) * (total - done)
        return f"{timedelta(seconds=round(left))} left"


def bar(done: int, total: int) -> str:
    """How far something is, as a picture and in numbers.

    >>> bar(3, 4)
    '##################......  3/4'
    """
    if not total:
        return ""
    full = done * BAR // total
    return f"{'#' * full}{'.' * (BAR - full)}  {done}/{total}"
