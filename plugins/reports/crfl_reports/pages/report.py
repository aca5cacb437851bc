"""Report of a run, or of a folder of runs, as one HTML file that loads nothing else."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from crfl_experiments.run_list import find_runs

from crfl_core.certification.levels import LEVEL_WORDS
from crfl_core.errors import CrflError, StoreError
from crfl_core.files.atomic_files import refuse_links, write_output_file
from crfl_core.reporting.glossary import GLOSSARY
from crfl_core.runs.results import load
from crfl_core.runs.run_directory import RunDirectory
from crfl_reports.pages import words
from crfl_reports.pages.explorer import SECONDS, explorer_data
from crfl_reports.pages.figure_data import backdoor, closeness, figures, together
from crfl_reports.pages.folder_page import folder_data, folder_sections, runs_in
from crfl_reports.pages.markup import Html, data_block, element, join_parts
from crfl_reports.pages.samples import sample_data
from crfl_reports.pages.sections import glossary, run_sections

if TYPE_CHECKING:
    from crfl_core.runs.results import RunResult

ASSETS = Path(__file__).with_name("assets")
STYLES = ("vendored/uPlot.min.css", "page.css")
LIBRARY = ("vendored/LICENSE", "vendored/uPlot.iife.min.js")
"""Library that draws the plots; its licence has to go with it."""

SCRIPTS = (
    "elements.js",
    "charts.js",
    "grids.js",
    "figures.js",
    "explorer.js",
    "samples.js",
    "folder.js",
    "tables.js",
    "start.js",
)
"""In the order in which they run, inside of one function."""

Section = tuple[str, str, Html]


def page(title: str, note: str, sections: Iterable[Section], data: Mapping[str, Any]) -> str:
    """Build the whole file.

    `note` stands below the title, `sections` are names, titles and contents.
    """
    parts = list(sections)
    links = [element("li", element("a", heading, href=f"#{name}")) for name, heading, _ in parts]
    body = [
        element(
            "section", element("h2", heading, id=f"{name}-title"), content, id=name, aria_labelledby=f"{name}-title"
        )
        for name, heading, content in parts
    ]
    licence, library = map(asset, LIBRARY)
    style = join_assets(STYLES)
    script = f'/*\n{licence}*/\n{library}\n(() => {{\n"use strict";\n{join_assets(SCRIPTS)}}})();\n'
    return Template(asset("page.html")).substitute(
        policy=policy(style, script),
        title=element("title", title),
        heading=element("h1", title),
        note=element("p", note, class_="note"),
        navigation=element("ul", *links),
        sections=join_parts(body),
        data=data_block("data", data),
        style=style,
        script=script,
    )


def policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy of the page.

    It allows this script, this style and pictures in the page, and nothing else.
    """
    return (
        f"default-src 'none'; script-src '{fingerprint(script)}'; style-src '{fingerprint(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def fingerprint(text: str) -> str:
    """Return the digest of a script or style for Content-Security-Policy."""
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"


def join_assets(names: Iterable[str]) -> str:
    """Join several assets."""
    return "\n".join(map(asset, names))


@cache
def asset(name: str) -> str:
    """Read a file that comes with this package."""
    return (ASSETS / name).read_text(encoding="utf-8")


NAME = "report.html"
MOST_REPORTS = 100
"""Missing reports of runs that the report of a folder writes."""
Progress = Callable[[int, int], object]
"""Told how many of how many questions of the explorer are answered."""

WORDS = {
    "glossary": dict(GLOSSARY),
    "levels": {level: level_words.meaning for level, level_words in LEVEL_WORDS.items()},
    "units": {level: level_words.unit for level, level_words in LEVEL_WORDS.items()},
}


def write_report(
    path: str | Path,
    out: str | Path | None = None,
    *,
    trust: bool = False,
    explore: float = SECONDS,
    progress: Progress | None = None,
) -> Path:
    """Write the report of a finished run or a folder of runs.

    Return the path of the report, one HTML file. By default it is `report.html` in the directory. It belongs to no
    manifest, so the run stays what it was. The explorer is given at most `explore` seconds. The report of a folder
    links to those of its runs and writes missing ones, in the same time together. The rules of trust are those of
    `load`.
    """
    directory = Path(path)
    target = directory / NAME if out is None else Path(out)
    if RunDirectory(directory).has_marker or (directory / "status.json").exists():
        text = run_page(directory, trust=trust, explore=explore, progress=progress)
    else:
        text = folder_page(directory, target, trust=trust, explore=explore, progress=progress)
    write(target, text)
    return target


def run_page(directory: Path, *, trust: bool, explore: float, progress: Progress | None) -> str:
    """Build the page of one run."""
    run = load(directory, trust=trust)
    data: dict[str, Any] = {"words": WORDS, **figures(run), "samples": sample_data(run)}
    attack = backdoor(run)
    distance = closeness(run)
    data["shown"] |= attack.data | distance.data
    data["explorer"] = explorer_data(run, explore, progress)
    title = f"{directory.resolve().name}: report of a run"
    sections = run_sections(run, backdoor=attack.content, closeness=distance.content)
    return page(title, f"Config “{run.config.name}”, seed {run.config.seed}.", sections, data)


def folder_page(directory: Path, target: Path, *, trust: bool, explore: float, progress: Progress | None) -> str:
    """Build the page of several runs."""
    if not directory.is_dir():
        raise StoreError(
            f"{directory}: not a run directory: give the path that `crfl run` printed, or a folder of runs"
        )
    runs = [load(path, trust=trust) for path in runs_in(directory)]
    if not runs:
        raise StoreError(f"{directory}: holds no finished run: give the path of one, or a folder of several")
    reports = write_run_reports(runs, target.parent, trust=trust, explore=explore, progress=progress)
    beside = together(runs)
    data = {"words": WORDS, "folder": folder_data(runs), "shown": beside.data}
    title = f"{directory.resolve().name}: {words.count_text(len(runs), 'run')}"
    sections = [*folder_sections(directory, runs, reports, beside.content), ("glossary", "Glossary", glossary())]
    return page(title, "Runs side by side; bands reach from the least to the largest of the seeds.", sections, data)


def write_run_reports(
    runs: Sequence[RunResult], base: Path, *, trust: bool, explore: float, progress: Progress | None
) -> dict[Path, str]:
    """Write missing and outdated reports of runs.

    Return the addresses of all reports, relative to `base`.

    Runs beyond the first `MOST_REPORTS`, and those in folders that cannot be written, keep what they have.
    """
    outdated = [run for run in runs if not is_current(run.path)][:MOST_REPORTS]
    for done, run in enumerate(outdated, 1):
        try:
            write(run.path / NAME, run_page(run.path, trust=trust, explore=explore / len(outdated), progress=None))
        except CrflError:
            continue
        if progress is not None:
            progress(done, len(outdated))
    written = [run.path for run in runs if (run.path / NAME).is_file()]
    return {path: quote(Path(os.path.relpath(path / NAME, base)).as_posix()) for path in written}


def is_current(directory: Path) -> bool:
    """Return whether a report exists and is newer than its runs.

    The report of a folder must be newer than every run below the folder.
    """
    report = directory / NAME
    if not report.is_file():
        return False
    states = [one.path / "status.json" for one in find_runs(directory)] if directory.is_dir() else []
    return all(report.stat().st_mtime >= state.stat().st_mtime for state in states if state.is_file())


def write(target: Path, text: str) -> None:
    """Replace a file as a whole, but no link."""
    refuse_links(target.parent, target.name)
    write_output_file(target, text.encode())
