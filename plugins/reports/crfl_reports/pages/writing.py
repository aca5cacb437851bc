"""Reports as files: of a run, or of a folder of runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from crfl_core.errors import DataError, StoreError
from crfl_core.runs.results import load
from crfl_core.runs.run_directory import RunDirectory
from crfl_reports.pages import words
from crfl_reports.pages.contents import figures
from crfl_reports.pages.drawings import backdoor, closeness, together
from crfl_reports.pages.folder import folder_data, folder_sections, runs_in
from crfl_reports.pages.lattice import SECONDS, explorer_data
from crfl_reports.pages.page import page
from crfl_reports.pages.samples import sample_data
from crfl_reports.pages.sections import run_sections

NAME = "report.html"
Progress = Callable[[int, int], object]
"""Told how many of how many questions of the explorer are answered."""

UNITS = {"client": "clients", "sample": "poison ratio", "feature": "radius"}
WORDS = {
    "statements": words.STATEMENTS,
    "directions": words.DIRECTIONS,
    "worlds": words.WORLDS,
    "levels": words.LEVELS,
    "statuses": words.STATUSES,
    "units": UNITS,
}


def write_report(
    path: str | Path,
    out: str | Path | None = None,
    *,
    trust: bool = False,
    explore: float = SECONDS,
    progress: Progress | None = None,
) -> Path:
    """Write the report of a finished run, or of a folder that holds several, and return where it is.

    It is one HTML file, by default `report.html` in the directory, which belongs to no manifest: the run stays what it
    was. The explorer is given at most `explore` seconds. The rules of trust are those of `load`.
    """
    directory = Path(path)
    target = directory / NAME if out is None else Path(out)
    if RunDirectory(directory).is_marked or (directory / "status.json").exists():
        text = run_page(directory, trust=trust, explore=explore, progress=progress)
    else:
        text = folder_page(directory, trust=trust)
    write(target, text)
    return target


def run_page(directory: Path, *, trust: bool, explore: float, progress: Progress | None) -> str:
    """The page of one run."""
    run = load(directory, trust=trust)
    data: dict[str, Any] = {"words": WORDS, **figures(run), "samples": sample_data(run, trust=trust)}
    attack = backdoor(run, trust=trust)
    distance = closeness(run)
    data["shown"] |= attack.data | distance.data
    data["explorer"] = explorer_data(run, explore, progress)
    title = f"{directory.resolve().name}: report of a run"
    sections = run_sections(run, backdoor=attack.content, closeness=distance.content)
    return page(title, f"Config “{run.config.name}”, seed {run.config.seed}.", sections, data)


def folder_page(directory: Path, *, trust: bool) -> str:
    """The page of several runs."""
    if not directory.is_dir():
        raise StoreError(f"{directory}: no run directory: give the path that `crfl run` printed, or a folder of runs")
    runs = [load(path, trust=trust) for path in runs_in(directory)]
    if not runs:
        raise StoreError(f"{directory}: holds no finished run: give the path of one, or a folder of several")
    beside = together(runs)
    data = {"words": WORDS, "folder": folder_data(runs), "shown": beside.data}
    title = f"{directory.resolve().name}: {words.counted(len(runs), 'run')}"
    return page(
        title,
        "Runs side by side; bands reach from the least to the largest of the seeds.",
        folder_sections(directory, runs, beside.content),
        data,
    )


def write(target: Path, text: str) -> None:
    """The whole new file or the whole old one."""
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        raise DataError(f"{target}: cannot be written: {error.strerror}: choose another --out") from error
