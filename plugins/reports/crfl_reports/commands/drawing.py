"""Figures of runs as files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crfl_experiments.comparison import run_paths

from crfl_core.errors import ConfigError, CrflError, StoreError
from crfl_core.files.atomic_files import write_output_file
from crfl_core.runs.results import RunResult
from crfl_reports.figures import Format, image_of
from crfl_reports.gallery import FIGURES, plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run_places(paths: Sequence[Path]) -> list[Path]:
    """Return the runs at some paths.

    A sweep stands for all of its finished cells. Raises `StoreError` if there are none.
    """
    found = [place for path in paths for place in run_paths(path)]
    if not found:
        raise StoreError(f"{paths[0]}: no cell is finished yet: continue with `crfl sweep {paths[0]}`")
    return found


def draw_figures(runs: Sequence[RunResult], names: Sequence[str] | None) -> tuple[dict[str, Figure], list[str]]:
    """Draw the named figures, or all that can be drawn.

    Also return the names of the figures that cannot be drawn.
    """
    if names:
        return {name: plot(runs, name) for name in dict.fromkeys(names)}, []
    found = {}
    left_out = {}
    for name in FIGURES:
        try:
            found[name] = plot(runs, name)
        except CrflError as error:
            left_out[name] = str(error)
    if not found:
        raise ConfigError(f"no figure can be drawn: {next(iter(left_out.values()))}")
    return found, [*left_out]


def save(figures: Mapping[str, Figure], folder: Path, formats: Sequence[Format]) -> Iterator[Path]:
    """Write every figure in every format and yield the paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder}: figures cannot be written: {error.strerror}: choose another --out") from error
    for name, figure in figures.items():
        for suffix in formats:
            path = folder / f"{name}.{suffix}"
            write_output_file(path, image_of(figure, suffix))
            yield path
