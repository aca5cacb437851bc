"""Schedule of a sweep: which cell copies the training of which other cell, and which cells can start now.

Two configs train the same model, bit for bit, if they differ only in what is asked afterwards: threat, votes,
certificates, radii. The first of such cells is trained, and the others copy its training.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crfl_core import dump_config
from crfl_experiments.sweeps.cell_runner import Job, Shared
from crfl_experiments.sweeps.cells import Cell, training_key
from crfl_experiments.sweeps.folder import Note, SweepFolder

if TYPE_CHECKING:
    from crfl_experiments.sweeps.pool import Event


@dataclass(frozen=True)
class Plan:
    """Cell, and the name of the cell whose training it copies (`source`); None if the cell is trained."""

    cell: Cell
    source: str | None = None

    @property
    def shares(self) -> Shared:
        """Return what the cell takes from its source."""
        return "nothing" if self.source is None else "training"


def plan_cells(cells: Sequence[Cell]) -> list[Plan]:
    """Decide which cell copies the training of which other cell.

    The plans are in the order in which cells should start.
    """
    families: dict[str, list[Cell]] = {}
    for cell in cells:
        families.setdefault(training_key(cell.config), []).append(cell)
    trained = [Plan(family[0]) for family in families.values()]
    copied = [Plan(cell, family[0].name) for family in families.values() for cell in family[1:]]
    return [*trained, *copied]


class Schedule:
    """Cells of a sweep: which of them wait, run, or have ended, and how."""

    def __init__(self, folder: SweepFolder, plans: Sequence[Plan]) -> None:
        self.folder = folder
        self.plans = {plan.cell.name: plan for plan in plans}
        self.notes = {name: folder.note(name) for name in self.plans}
        self.finished = {name for name in self.plans if folder.is_finished(name)}
        self.failed: set[str] = set()
        self.running: dict[str, float] = {}
        self.rounds: dict[str, tuple[int, int]] = {}

    @property
    def waiting(self) -> list[str]:
        """Return the names of cells that were not started yet."""
        return [name for name in self.plans if name not in self.finished | self.failed | self.running.keys()]

    @property
    def jobs_left(self) -> int:
        """Return the number of jobs that wait.

        The cells of one stack are one job.
        """
        return len({self.plans[name].cell.stack or name for name in self.waiting})

    @property
    def is_over(self) -> bool:
        """Return whether no cell waits or runs."""
        return not self.waiting and not self.running

    def start_next(self) -> list[Job]:
        """Mark the next cell or stack as running and return its jobs.

        The list is empty if none can start.
        """
        waiting = [self.plans[name] for name in self.waiting]
        first = next((plan for plan in waiting if self._can_start(plan)), None)
        if first is None:
            return []
        chosen = [first]
        if first.cell.stack is not None and first.source is None:
            chosen = [plan for plan in waiting if plan.source is None and plan.cell.stack == first.cell.stack]
        self.running.update((plan.cell.name, time.monotonic()) for plan in chosen)
        return [self._job(plan) for plan in chosen]

    def record(self, event: Event) -> None:
        """Record an event of a cell.

        When the cell has ended, write its note.
        """
        name = event.cell
        if event.kind == "round":
            self.rounds[name] = event.said["round"], event.said["rounds"]
            return
        seconds = round(time.monotonic() - self.running.pop(name), 2)
        self.rounds.pop(name, None)
        if event.kind == "finished":
            self.finished.add(name)
            note = Note("finished", seconds=seconds, shares=event.said["shares"])
        else:
            self.failed.add(name)
            note = Note("failed", event.said["reason"], seconds)
        self.notes[name] = note
        self.folder.write_note(name, note)

    def _can_start(self, plan: Plan) -> bool:
        """Return whether the source of a cell has ended.

        A cell whose source failed trains itself.
        """
        return plan.source is None or plan.source in self.finished | self.failed

    def _job(self, plan: Plan) -> Job:
        source = self.folder.cell(plan.source) if plan.source in self.finished else None
        return Job(plan.cell.name, dump_config(plan.cell.config), self.folder.cell(plan.cell.name), source)
