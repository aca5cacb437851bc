"""Progress in the terminal."""

from __future__ import annotations

import sys
import time

from pydantic import Field, PrivateAttr
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import (
    Progress as Bar,
)

from crfl_core.extend import CertificateResult, RoundRecord, RunContext, Tracker, hookimpl


class Progress(Tracker):
    """A live bar over the rounds with loss and accuracy; plain lines where there is no terminal."""

    seconds: float = Field(2.0, ge=0, description="without a terminal: least number of seconds between two lines")

    _bar: Bar | None = PrivateAttr(default=None)
    _task: TaskID = PrivateAttr(default=TaskID(0))
    _last_line: float = PrivateAttr(default=float("-inf"))

    @hookimpl
    def crfl_features_mapped(self, done: int, total: int) -> None:
        """A line now and then, if they take longer than a moment; no bar, which an error would leave behind."""
        now = time.monotonic()
        if self._last_line == float("-inf"):
            self._last_line = now
        elif now >= self._last_line + self.seconds:
            self._last_line = now
            sys.stderr.write(f"feature maps {done}/{total}\n")

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        """Show the bar."""
        self._last_line = float("-inf")
        console = Console(stderr=True)
        if not console.is_terminal:
            return
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._bar.start()
        self._task = self._bar.add_task("training", total=run.rounds, completed=run.resumed_from, figures="")

    @hookimpl
    def crfl_round_finished(self, run: RunContext, record: RoundRecord) -> None:
        """Advance, with loss and accuracy of the round if they were measured."""
        figures = ""
        if record.accuracy is not None and record.loss is not None:
            figures = f"loss {record.loss:.3f}  accuracy {record.accuracy:.3f}"
        last = record.round == run.rounds
        if self._bar is not None:
            self._bar.update(self._task, completed=record.round, figures=figures)
            if last:
                self._bar.update(self._task, description="voting")
        elif last or time.monotonic() >= self._last_line + self.seconds:
            self._last_line = time.monotonic()
            sys.stderr.write(f"round {record.round}/{run.rounds}  {figures}\n")

    @hookimpl
    def crfl_certified(self, certified: CertificateResult) -> None:
        """Name the guarantee that is ready."""
        if self._bar is not None:
            self._bar.update(self._task, description=f"{certified.certificate} ({certified.test_set})")

    @hookimpl
    def crfl_run_finished(self) -> None:
        """Take the bar away."""
        self._stop()

    @hookimpl
    def crfl_run_failed(self) -> None:
        """Take the bar away."""
        self._stop()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
