"""Run a sweep: many runs of one config, side by side in processes or one after the other."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crfl_core import reading_once
from crfl_core.errors import ConfigError, CrflWarning
from crfl_core.live_line import is_interactive
from crfl_experiments.attack_settings import difference_note
from crfl_experiments.sweeps.cell_runner import Job, run_cell
from crfl_experiments.sweeps.cells import Cell, Definition, define
from crfl_experiments.sweeps.folder import SweepFolder
from crfl_experiments.sweeps.overview import Overview
from crfl_experiments.sweeps.pool import Event, Pool
from crfl_experiments.sweeps.results import SweepResult, write_tables
from crfl_experiments.sweeps.schedule import Schedule, plan_cells
from crfl_experiments.sweeps.worker import failure_reason

if TYPE_CHECKING:
    from crfl_experiments.sweeps.ray_pool import RayPool

ENGINES = ("local", "ray")
SECONDS_BETWEEN_TABLES = 5.0
"""Seconds between two tables of an unfinished sweep."""
EVENT_WAIT_SECONDS = 0.5
"""Longest wait for an event, so that the clock in the terminal keeps running."""

OnEvent = Callable[[Event | None], None]
"""Called with every event of a cell, and now and then with None."""


def sweep(  # noqa: PLR0913 - all by name, but the first
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    workers: int | None = None,
    engine: str = "local",
    progress: bool | None = None,
) -> SweepResult:
    """Run a config with every combination of the values in `vary`.

    Each combination is run with every seed. A sweep that was stopped resumes. Anything else that a `[sweep]` table can
    say is written in the config. Results go to `out`, by default `sweeps/<name>`; `workers` is the number of
    processes, by default one per core. With `engine="ray"` the workers belong to the Ray cluster that runs here or that
    RAY_ADDRESS names, or else to one that is started for the sweep. A failed cell does not stop the others:
    `SweepResult.failed` lists the failed ones. `progress` shows how far the sweep is; unset, it does so in notebooks
    and at Python's prompt.
    """
    parts: dict[str, Any] = {} if vary is None else {"grid": {key: list(values) for key, values in vary.items()}}
    if seeds is not None:
        parts["seeds"] = seeds if isinstance(seeds, int) else list(seeds)
    definition = define(config, overrides, parts)
    path = default_path(definition) if out is None else Path(out)
    is_shown = is_interactive() if progress is None else progress
    run_sweep(definition, path, workers, quiet=not is_shown, engine=engine)
    return SweepResult(path)


def default_path(definition: Definition) -> Path:
    """Return the folder of a sweep for which the user gave none."""
    return Path("sweeps", definition.name)


def run_sweep(
    definition: Definition,
    path: Path,
    workers: int | None = None,
    *,
    quiet: bool = False,
    only: Callable[[Cell], bool] | None = None,
    engine: str = "local",
) -> dict[str, str]:
    """Run all cells, or `only` some, that are not finished yet.

    Returns the reason for every cell that failed or cannot be read, by name. Nothing is written before the configs of
    all cells were checked.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers {workers}: must be at least 1")
    if engine not in ENGINES:
        raise ConfigError(f"--engine {engine}: must be one of {', '.join(ENGINES)}")
    cells = definition.cells()
    warn_of_differences(cells)
    folder = SweepFolder.open_or_create(path, definition)
    schedule = Schedule(folder, plan_cells([cell for cell in cells if only is None or only(cell)]))
    try:
        with connect_workers(engine, workers, folder) as (available, make_pool):
            count = max(1, min(workers or available, len(schedule.waiting)))
            with Overview(schedule, count, quiet=quiet) as overview:
                on_event = TableUpdater(folder, cells, overview)
                run_cells(schedule, count, on_event, None if make_pool is None else partial(make_pool, count))
    finally:
        damaged = write_tables(folder, cells)
    return {**damaged, **{name: schedule.notes[name].reason for name in schedule.plans if name in schedule.failed}}


def warn_of_differences(cells: Sequence[Cell]) -> None:
    """Warn if attacks differ in what no key of the sweep sets.

    The warning is about attackers, rounds and scale.
    """
    attacks = list(dict.fromkeys(cell.attack for cell in cells if cell.attack is not None))
    if note := difference_note(attacks, {key for cell in cells for key in cell.columns}):
        warnings.warn(note, CrflWarning, stacklevel=3)


@contextmanager
def connect_workers(
    engine: str, workers: int | None, folder: SweepFolder
) -> Iterator[tuple[int, Callable[[int], RayPool] | None]]:
    """Yield the number of cells that can run at once.

    For Ray, also yield the function that makes a pool of that size.
    """
    if engine == "local":
        yield count_cores(), None
        return
    from crfl_experiments.sweeps.ray_pool import RayPool, connect_to_cluster

    with connect_to_cluster(workers) as available:
        yield available, partial(RayPool, marker=folder.path / "sweep.toml")


class TableUpdater:
    """Shows events in the overview, and writes the tables of an unfinished sweep now and then."""

    def __init__(self, folder: SweepFolder, cells: Sequence[Cell], overview: Overview) -> None:
        self._folder = folder
        self._cells = cells
        self._overview = overview
        self._written = time.monotonic()

    def __call__(self, event: Event | None) -> None:
        """Handle an event, or the time that went by without one."""
        self._overview.update(event)
        is_due = time.monotonic() > self._written + SECONDS_BETWEEN_TABLES
        if event is not None and event.kind == "finished" and is_due:
            write_tables(self._folder, self._cells)
            self._written = time.monotonic()


def run_cells(
    schedule: Schedule, workers: int, on_event: OnEvent, make_pool: Callable[[], Pool | RayPool] | None = None
) -> None:
    """Run every cell that is not finished.

    `on_event` is called after every event, and now and then without one. A failure is noted and does not stop other
    cells. Ctrl-C ends all workers, whose cells resume later. `make_pool` makes other workers than processes of this
    machine.
    """
    folder = schedule.folder
    (folder.path / "cells").mkdir(exist_ok=True)

    def record(event: Event | None) -> None:
        if event is not None:
            schedule.record(event)
        on_event(event)

    if workers == 1 and make_pool is None and not any(plan.cell.stack for plan in schedule.plans.values()):
        run_here(schedule, record)
        return
    threads = max(1, workers // max(1, schedule.jobs_left))
    run_in_pool(schedule, make_pool or partial(Pool, workers, folder.path / "workers.log", threads), record)


def run_in_pool(schedule: Schedule, make_pool: Callable[[], Pool | RayPool], on_event: OnEvent) -> None:
    """Run the cells in several processes."""
    with make_pool() as pool:
        while not schedule.is_over:
            while pool.free:
                jobs = schedule.start_next()
                if not jobs:
                    break
                pool.start(jobs)
            for event in pool.events(EVENT_WAIT_SECONDS):
                on_event(event)
            on_event(None)


def run_here(schedule: Schedule, on_event: OnEvent) -> None:
    """Run the cells in this process, one after the other.

    PyTorch uses one thread, as in workers.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with reading_once():
            jobs = schedule.start_next()
            while jobs:
                on_event(None)
                for job in jobs:
                    on_event(run_job(job, on_event))
                jobs = schedule.start_next()
    finally:
        torch.set_num_threads(threads)


def run_job(job: Job, on_event: OnEvent) -> Event:
    """Run one cell in this process and return how it ended.

    Output of plugins goes to stderr, as that of workers goes to a file.
    """

    def on_round(number: int, total: int) -> None:
        on_event(Event(job.name, "round", {"round": number, "rounds": total}))

    try:
        with contextlib.redirect_stdout(sys.stderr):
            return Event(job.name, "finished", {"shares": run_cell(job, on_round)})
    except Exception as error:
        return Event(job.name, "failed", {"reason": failure_reason(error)})


def count_cores() -> int:
    """Count the processes that can run at once on this machine."""
    return len(os.sched_getaffinity(0))
