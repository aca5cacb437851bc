"""`sweep`: many runs of one config, each with other settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crfl_core.errors import ConfigError
from crfl_experiments.sweeps.cells import Cell, Definition, define
from crfl_experiments.sweeps.execution import Schedule, cores, perform
from crfl_experiments.sweeps.folder import SweepFolder
from crfl_experiments.sweeps.overview import Overview
from crfl_experiments.sweeps.pool import Event
from crfl_experiments.sweeps.result import SweepResult
from crfl_experiments.sweeps.shared_training import plan_cells
from crfl_experiments.sweeps.table import write_tables

if TYPE_CHECKING:
    from crfl_experiments.sweeps.ray_pool import RayPool

Hired = Callable[[int], "RayPool"]
ENGINES = ("local", "ray")
PAUSE = 5.0
"""Seconds between two tables of an unfinished sweep."""


def sweep(  # noqa: PLR0913 - all by name, but the first
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    workers: int | None = None,
    engine: str = "local",
) -> SweepResult:
    """Run a config with every combination of the values in `vary`, each with several seeds; goes on where it stopped.

    Anything else that a `[sweep]` table can say is written in the config. Results go to `out`, by default
    `sweeps/<name>`; `workers` is the number of processes, by default that of the cores. With `engine="ray"` they belong
    to the Ray cluster that runs here or that RAY_ADDRESS names, or else to one that is started for the sweep. Failed
    cells stop no other: `SweepResult.failed` lists them.
    """
    parts: dict[str, Any] = {} if vary is None else {"grid": {key: list(values) for key, values in vary.items()}}
    if seeds is not None:
        parts["seeds"] = seeds if isinstance(seeds, int) else list(seeds)
    definition = define(config, overrides, parts)
    path = default_path(definition) if out is None else Path(out)
    run_sweep(definition, path, workers, quiet=True, engine=engine)
    return SweepResult(path)


def default_path(definition: Definition) -> Path:
    """Where a sweep goes that nobody gave a folder."""
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
    """Run what is not finished yet, or `only` some of it; returns why cells failed or cannot be read, by name.

    Nothing is written before every cell's config was checked.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers {workers}: needs at least 1")
    if engine not in ENGINES:
        raise ConfigError(f"--engine {engine}: must be one of {', '.join(ENGINES)}")
    cells = definition.cells()
    folder = SweepFolder.claim(path, definition)
    schedule = Schedule(folder, plan_cells([cell for cell in cells if only is None or only(cell)]))
    try:
        with places(engine, workers, folder) as (there, hired):
            used = max(1, min(workers or there, len(schedule.waiting)))
            with Overview(schedule, used, quiet=quiet) as overview:
                perform(
                    schedule, used, Watcher(folder, cells, overview), None if hired is None else partial(hired, used)
                )
    finally:
        damaged = write_tables(folder, cells)
    return {**damaged, **{name: schedule.notes[name].reason for name in schedule.plans if name in schedule.failed}}


@contextmanager
def places(
    engine: str, workers: int | None, folder: SweepFolder
) -> Iterator[tuple[int, Callable[[int], RayPool] | None]]:
    """How many cells can run at once, and what makes so many workers, if these are not processes of this machine."""
    if engine == "local":
        yield cores(), None
        return
    from crfl_experiments.sweeps.ray_pool import RayPool, connected

    with connected(workers) as there:
        yield there, partial(RayPool, marker=folder.path / "sweep.toml")


class Watcher:
    """Shows what happens, and keeps the tables current."""

    def __init__(self, folder: SweepFolder, cells: Sequence[Cell], overview: Overview) -> None:
        self._folder = folder
        self._cells = cells
        self._overview = overview
        self._written = time.monotonic()

    def __call__(self, event: Event | None) -> None:
        """After an event, or none."""
        self._overview.watch(event)
        if event is not None and event.kind == "finished" and time.monotonic() > self._written + PAUSE:
            write_tables(self._folder, self._cells)
            self._written = time.monotonic()
