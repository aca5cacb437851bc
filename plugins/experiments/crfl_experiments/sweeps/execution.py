"""All cells of a sweep, in an order in which each finds what it takes from others, on some cores at once."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from crfl_core import dump_config, reading_once
from crfl_experiments.sweeps.cell_runner import Job
from crfl_experiments.sweeps.folder import Note, SweepFolder
from crfl_experiments.sweeps.pool import Event, Pool
from crfl_experiments.sweeps.shared_training import Plan

if TYPE_CHECKING:
    from crfl_experiments.sweeps.ray_pool import RayPool

PAUSE = 0.5
"""Seconds between two looks at the clock."""

Heard = Callable[[Event | None], None]
"""Told what happens to cells, and now and then that nothing did."""


class Schedule:
    """Which cells can be started, which run, and how the others ended."""

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
        """Cells that were not started yet."""
        return [name for name in self.plans if name not in self.finished | self.failed | self.running.keys()]

    @property
    def units(self) -> int:
        """How many things there are to do side by side: cells that wait, those of one stack counted once."""
        return len({self.plans[name].cell.stack or name for name in self.waiting})

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return not self.waiting and not self.running

    def ready(self) -> list[Job]:
        """A cell that finds everything it needs, with those of its stack, marked as running; empty if there is none."""
        waiting = [self.plans[name] for name in self.waiting]
        first = next((plan for plan in waiting if self._finds_all(plan)), None)
        if first is None:
            return []
        chosen = [first]
        if first.cell.stack is not None and first.source is None:
            mates = [plan for plan in waiting if plan.source is None and plan.cell.stack == first.cell.stack]
            chosen = [plan for plan in mates if self._finds_all(plan)]
        self.running.update((plan.cell.name, time.monotonic()) for plan in chosen)
        return [self._job(plan) for plan in chosen]

    def took(self, event: Event) -> None:
        """Keep account of what happened, and note how cells end."""
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

    def _finds_all(self, plan: Plan) -> bool:
        """Whether what a cell takes from others is there, or will never be."""
        ended = self.finished | self.failed
        return all(name is None or name in ended for name in (plan.twin, plan.source))

    def _job(self, plan: Plan) -> Job:
        source = self.folder.cell(plan.source) if plan.source in self.finished else None
        twin = self.folder.cell(plan.twin) if plan.twin in self.finished else None
        return Job(plan.cell.name, dump_config(plan.cell.config), self.folder.cell(plan.cell.name), source, twin)


def perform(schedule: Schedule, workers: int, watch: Heard, pool: Callable[[], Pool | RayPool] | None = None) -> None:
    """Run every cell that is not finished; `watch` is called after every event, and now and then without one.

    What fails is noted and stops no other cell. Ctrl-C ends all workers, whose cells resume later. `pool` makes other
    workers than processes of this machine.
    """
    folder = schedule.folder
    (folder.path / "cells").mkdir(exist_ok=True)

    def heard(event: Event | None) -> None:
        if event is not None:
            schedule.took(event)
        watch(event)

    if workers == 1 and pool is None and not any(plan.cell.stack for plan in schedule.plans.values()):
        here(schedule, heard)
    else:
        hands = max(1, workers // max(1, schedule.units))
        side_by_side(schedule, pool or partial(Pool, workers, folder.path / "workers.log", hands), heard)


def side_by_side(schedule: Schedule, hired: Callable[[], Pool | RayPool], heard: Heard) -> None:
    """Let several processes run the cells."""
    with hired() as pool:
        while not schedule.is_over:
            while pool.free and (jobs := schedule.ready()):
                pool.start(jobs)
            for event in pool.events(PAUSE):
                heard(event)
            heard(None)


def here(schedule: Schedule, heard: Heard) -> None:
    """Run the cells in this process, one after the other, in one thread as workers do."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with reading_once():
            while jobs := schedule.ready():
                heard(None)
                for job in jobs:
                    heard(outcome(job, heard))
    finally:
        torch.set_num_threads(before)


def outcome(job: Job, heard: Heard) -> Event:
    """How a cell ends that is run here. What plugins print goes to stderr, as that of workers goes to a file."""
    from crfl_experiments.sweeps.cell_runner import run_cell
    from crfl_experiments.sweeps.worker import reason_of

    def on_round(number: int, total: int) -> None:
        heard(Event(job.name, "round", {"round": number, "rounds": total}))

    try:
        with contextlib.redirect_stdout(sys.stderr):
            return Event(job.name, "finished", {"shares": run_cell(job, on_round)})
    except Exception as error:
        return Event(job.name, "failed", {"reason": reason_of(error)})


def cores() -> int:
    """How many processes can run at once here."""
    return len(os.sched_getaffinity(0))
