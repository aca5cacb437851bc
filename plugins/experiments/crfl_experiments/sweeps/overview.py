"""Progress of a sweep in the terminal: cells done, cells running, time left, the best cell so far."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import TYPE_CHECKING

from crfl_core.errors import CrflError
from crfl_core.printable_text import PrintableOutput, printable
from crfl_core.reporting.metrics import Metrics
from crfl_core.runs.run_directory import RunDirectory

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from crfl_experiments.sweeps.pool import Event
    from crfl_experiments.sweeps.schedule import Schedule

LINES = 4
"""Running cells that are shown by name."""

WIDTH = 24
"""Of the bar."""


class Overview:
    """Live display in a terminal; elsewhere a line for every cell that ends. `quiet` shows nothing."""

    def __init__(self, schedule: Schedule, workers: int, *, quiet: bool = False) -> None:
        self._schedule = schedule
        self._workers = workers
        self._quiet = quiet
        self._begun = time.monotonic()
        self._found_finished = len(schedule.finished)
        self._best: tuple[float, str] | None = None
        self._live: Live | None = None
        for name in schedule.finished:
            self._judge(name)

    def __enter__(self) -> Overview:
        if not self._quiet:
            from rich.console import Console
            from rich.live import Live

            self._console: Console = Console(stderr=True, highlight=False)
            if self._console.is_terminal:
                shown = PrintableOutput(self.render())
                self._live = Live(shown, console=self._console, refresh_per_second=4, transient=True)
                self._live.start()
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, event: Event | None) -> None:
        """Show an event, or the time that went by without one."""
        ended = event is not None and event.kind in ("finished", "failed")
        if ended and event is not None:
            self._judge(event.cell)
        if self._live is not None:
            self._live.update(PrintableOutput(self.render()))
        elif ended and event is not None and not self._quiet:
            self._console.print(printable(self.line(event)), markup=False, soft_wrap=True)

    def line(self, event: Event) -> str:
        """Return the line of a cell that ended.

        It also has the progress of the sweep.
        """
        title = self._schedule.plans[event.cell].cell.title
        how = event.kind if event.kind == "finished" else f"failed: {event.said['reason']}"
        return f"{self.counts()}  {title}: {how}"

    def counts(self) -> str:
        """Return the number of finished cells and the time left."""
        schedule = self._schedule
        failed = f", {len(schedule.failed)} failed" if schedule.failed else ""
        return f"{len(schedule.finished)}/{len(schedule.plans)} cells{failed}{self.time_left()}"

    def time_left(self) -> str:
        """Estimate the time that is left from the time of finished cells."""
        seconds = estimate_remaining(self._schedule, time.monotonic())
        return "" if not seconds else f", about {format_duration(seconds / self._workers)} left"

    def render(self) -> RenderableType:
        """Return the whole display."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        schedule = self._schedule
        done = len(schedule.finished) + len(schedule.failed)
        head = Table.grid(padding=(0, 1))
        head.add_row(ProgressBar(total=len(schedule.plans), completed=done, width=WIDTH), Text(self.counts()))
        parts: list[RenderableType] = [head]
        for name in [*schedule.running][:LINES]:
            text = f"  {phase_text(schedule.rounds.get(name))}  {name}"
            parts.append(Text(text, overflow="ellipsis", no_wrap=True))
        if self._best is not None:
            parts.append(Text(f"best accuracy so far {self._best[0]:.3f}: {self._best[1]}", overflow="ellipsis"))
        return Group(*parts)

    def _judge(self, name: str) -> None:
        """Update the best cell."""
        if name not in self._schedule.finished:
            return
        try:
            metrics = RunDirectory(self._schedule.folder.cell(name)).read_facts("metrics.json", Metrics)
        except CrflError:
            return
        if self._best is None or metrics.accuracy > self._best[0]:
            self._best = metrics.accuracy, name


def phase_text(rounds: tuple[int, int] | None) -> str:
    """Return what a cell is doing.

    >>> phase_text(None), phase_text((3, 40)), phase_text((40, 40))
    ('starting      ', 'round 3/40    ', 'certifying    ')
    """
    what = "starting" if rounds is None else "round {}/{}".format(*rounds) if rounds[0] < rounds[1] else "certifying"
    return f"{what:<14}"


def estimate_remaining(schedule: Schedule, now: float) -> float | None:
    """Estimate the seconds of work left from the cost of similar cells.

    The result is None if no cell has begun.
    """
    took: dict[str, list[float]] = {}
    for name, plan in schedule.plans.items():
        if name in schedule.finished and schedule.notes[name].seconds:
            took.setdefault(plan.shares, []).append(schedule.notes[name].seconds)
    known = [seconds for each in took.values() for seconds in each]
    for name, started in schedule.running.items() if not known else ():
        number, total = schedule.rounds.get(name, (0, 1))
        known += [(now - started) * total / number] if number else []
    if not known:
        return None

    def cost(name: str) -> float:
        each = took.get(schedule.plans[name].shares, known)
        return sum(each) / len(each)

    begun = (max(0.0, cost(name) - (now - started)) for name, started in schedule.running.items())
    return math.fsum(map(cost, schedule.waiting)) + math.fsum(begun)


def format_duration(seconds: float) -> str:
    """Format a time span.

    >>> format_duration(42), format_duration(150), format_duration(9000)
    ('42 s', '2 min 30 s', '2 h 30 min')
    """
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
