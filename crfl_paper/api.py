"""`reproduce`: run figures of the paper, and judge what it says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crfl_core.extend import ConfigError
from crfl_paper import phi
from crfl_paper.book import BOOK, DATASETS, Figure, swept
from crfl_paper.claims import verdict
from crfl_paper.page import PICTURES, Finding, Section, page
from crfl_paper.readings import Point, points_of
from crfl_paper.sweeping import FIGURE, Question, combined, missing_data

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from crfl_sweeps.cells import Cell
    from crfl_sweeps.result import CellResult

PAGE = "reproduction.md"
Chosen = tuple[str, Figure]
"""A figure and the dataset on which it is measured, dataset first."""


@dataclass(frozen=True)
class Reproduction:
    """What came out: the page, every figure with its findings, and the cells that failed, with the reason."""

    path: Path
    sections: tuple[Section, ...]
    failures: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        figures = [asdict(section) for section in self.sections]
        return {"page": str(self.path), "figures": figures, "failures": self.failures}


def names() -> dict[str, str]:
    """What can be asked for, with what it is: figures with their datasets."""
    found = {
        f"{dataset}/{figure.name}": f"{figure.title} ({figure.number})"
        for dataset in DATASETS
        for figure in BOOK
        if dataset in figure.datasets
    }
    return {**found, phi.NAME: f"{phi.TITLE} ({phi.NUMBER})"}


def reproduce(  # noqa: PLR0913  # as many options as people may give to the command
    figures: Sequence[str] = (),
    *,
    seeds: int = 5,
    fast: bool = False,
    out: str | Path = "reproduction",
    overrides: Sequence[str] = (),
    workers: int | None = None,
    quiet: bool = True,
) -> Reproduction:
    """Run figures of the paper, all if none is named, draw them and write one page; goes on where it stopped.

    A figure is named as in `names`, or by its dataset or its name alone. `fast` takes few test samples and fewer,
    larger local steps. `overrides` are `key=value` texts that count in every cell, above what figures fix.
    """
    question, place = Question(seeds, fast, tuple(overrides)), Path(out)
    chosen, with_phi = select(figures)
    sections: list[Section] = []
    failures: dict[str, str] = {}
    for dataset in dict.fromkeys(dataset for dataset, _ in chosen):
        own = [figure for name, figure in chosen if name == dataset]
        if reason := missing_data(dataset, question):
            sections += [unmeasured(dataset, figure, f"data missing, {reason}") for figure in own]
            continue
        folder = place / "sweeps" / f"{dataset}{'-fast' if fast else ''}-{seeds}"
        needed = {name for figure in own for name in (figure.takes or (figure.name,))}
        failures |= swept_cells(dataset, needed, question, folder, workers=workers, quiet=quiet)
        cells = cells_of(dataset, question, folder)
        sections += [measured(dataset, figure, cells, place) for figure in own]
    if with_phi:
        sections.append(phi_section(place))
    target = place / PAGE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(sections, how(question)) + "\n", encoding="utf-8")
    return Reproduction(target, tuple(sections), failures)


def select(figures: Sequence[str]) -> tuple[list[Chosen], bool]:
    """The figures that are asked for, in the order of the book, and whether the study of Phi is."""
    known = [(dataset, figure) for dataset in DATASETS for figure in BOOK if dataset in figure.datasets]
    answers = {name for name in figures if name == phi.NAME}
    found = []
    for dataset, figure in known:
        own = {dataset, figure.name, f"{dataset}/{figure.name}"} & set(figures)
        answers |= own
        if own or not figures:
            found.append((dataset, figure))
    if unknown := [name for name in figures if name not in answers]:
        raise ConfigError(f"there is no figure {unknown[0]!r}: `crfl reproduce --list` names all of them")
    return found, not figures or phi.NAME in figures


def swept_cells(
    dataset: str, needed: set[str], question: Question, folder: Path, *, workers: int | None, quiet: bool
) -> dict[str, str]:
    """Run the cells of some figures in the one sweep that all figures of a dataset share."""
    from crfl_sweeps.api import run_sweep

    def wanted(cell: Cell) -> bool:
        return cell.settings[FIGURE] in needed

    definition = combined(dataset, [figure.name for figure in swept(dataset)], question)
    return run_sweep(definition, folder, workers, quiet=quiet, only=wanted)


def measured(dataset: str, figure: Figure, cells: Sequence[CellResult], place: Path) -> Section:
    """A figure from its finished cells."""
    from crfl_paper.drawing import drawn

    points = measured_points(dataset, figure, cells)
    if not points:
        return unmeasured(dataset, figure, "no cell is finished, see the notes of the sweep")
    findings = [
        Finding(claim.quotation, claim.section, test.words, test.told(points), verdict(test.margins(points)))
        for claim in figure.claims
        for test in claim.tests
    ]
    picture = saved(drawn(figure, points), f"{dataset}-{figure.name}.svg", place)
    return Section(
        f"{dataset}/{figure.name}", figure.title, figure.number, dataset, tuple(findings), figure.notes, picture
    )


def cells_of(dataset: str, question: Question, folder: Path) -> list[CellResult]:
    """The cells as they were defined here: a table that was written and read has its keys in another order."""
    from crfl_sweeps.folder import SweepFolder
    from crfl_sweeps.result import CellResult

    kept = SweepFolder.existing(folder)
    definition = combined(dataset, [figure.name for figure in swept(dataset)], question)
    return [CellResult(cell, kept.cell(cell.name), kept.note(cell.name)) for cell in definition.cells()]


def measured_points(dataset: str, figure: Figure, cells: Sequence[CellResult]) -> list[Point]:
    """The points of a figure, or of all those that it takes."""
    sources = [one for one in swept(dataset) if one.name in (figure.takes or (figure.name,))]
    return [
        point
        for source in sources
        for point in points_of(
            source.name,
            [one for one in cells if one.settings[FIGURE] == source.name],
            source.axis,
            source.loose_round,
        )
    ]


def unmeasured(dataset: str, figure: Figure, reason: str) -> Section:
    """A figure that could not be measured."""
    findings = tuple(
        Finding(claim.quotation, claim.section, test.words, "", "not measured", reason)
        for claim in figure.claims
        for test in claim.tests
    )
    return Section(f"{dataset}/{figure.name}", figure.title, figure.number, dataset, findings, figure.notes)


def phi_section(place: Path) -> Section:
    """The study of Phi, which is formulas."""
    study = phi.Study()
    finding = Finding(phi.QUOTATION, phi.SECTION, phi.WORDS, study.told(), verdict(study.margins()))
    picture = saved(study.figure(), f"{phi.NAME}.svg", place)
    return Section(phi.NAME, phi.TITLE, phi.NUMBER, "formulas", (finding,), (phi.NOTE,), picture)


def saved(drawing: Drawing, name: str, place: Path) -> str:
    """Write a picture; returns its name."""
    from crfl_figures import image_of

    folder = place / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(image_of(drawing, "svg"))
    return name


def how(question: Question) -> str:
    """What was run, in a sentence."""
    said = "one seed" if question.seeds == 1 else f"{question.seeds} seeds, lines are means and bands the range"
    size = (
        "`--fast`: 400 test samples, and fewer local steps at a higher rate, with the same tau eta"
        if question.fast
        else "as large as the paper's"
    )
    other = f"; set otherwise: {', '.join(f'`{one}`' for one in question.overrides)}" if question.overrides else ""
    return f"Here: {said}; runs are {size}{other}."
