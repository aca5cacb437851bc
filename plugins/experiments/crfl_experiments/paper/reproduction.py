"""Reproduction of the paper: run its figures, and judge its claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from crfl_core.errors import ConfigError
from crfl_experiments.paper import phi
from crfl_experiments.paper.claims import judge_claim
from crfl_experiments.paper.figures import DATASETS, FIGURES, Figure, figures_with_cells
from crfl_experiments.paper.page import PICTURES, Finding, Section, page
from crfl_experiments.paper.readings import Point, Source, format_mean, group_cells, noise_free_point
from crfl_experiments.paper.sound_answers import SoundAnswer, find_answers
from crfl_experiments.paper.sweep_files import (
    FIGURE_KEY,
    ReproductionOptions,
    figures_sweep,
    missing_data_remedy,
    sound_sweep,
)
from crfl_experiments.sweeps.results import CellResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from crfl_experiments.sweeps.cells import Cell, Definition

PAGE = "reproduction.md"
SECTIONS = "figures.json"
Chosen = tuple[str, Figure]
"""A figure and the dataset on which it is measured, dataset first."""


@dataclass(frozen=True)
class Reproduction:
    """Result of `reproduce`: the page, every figure with its findings, and the cells that failed."""

    path: Path
    sections: tuple[Section, ...]
    failures: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        figures = [asdict(section) for section in self.sections]
        return {"page": str(self.path), "figures": figures, "failures": self.failures}


def figure_titles() -> dict[str, str]:
    """Return the names of all figures with their datasets, and their titles."""
    found = {
        f"{dataset}/{figure.name}": f"{figure.title} ({figure.number})"
        for dataset in DATASETS
        for figure in FIGURES
        if dataset in figure.datasets
    }
    return {**found, phi.NAME: f"{phi.TITLE} ({phi.NUMBER})"}


def reproduce(  # noqa: PLR0913  # as many options as people may give to the command
    figures: Sequence[str] = (),
    *,
    seeds: int = 5,
    fast: bool = False,
    authors: bool = False,
    sound: bool = True,
    out: str | Path = "reproduction",
    overrides: Sequence[str] = (),
    workers: int | None = None,
    quiet: bool = True,
) -> Reproduction:
    """Run figures of the paper, draw them and write one page.

    By default these are all figures. One is named as in `names`, or by its dataset or its name alone. The page keeps
    the figures that the same folder had before. `fast` takes few test samples and fewer, larger local steps; `authors`
    does what their published code does where the paper says something else. `sound` puts the same questions to a sound
    certificate. `overrides` are `key=value` texts that count in every cell, above what figures fix.
    """
    options = ReproductionOptions(seeds, fast, tuple(overrides), authors=authors)
    chosen, with_phi = select_figures(figures)
    work = DatasetRunner(options, Path(out), workers, quiet=quiet, with_sound=sound)
    for dataset in dict.fromkeys(dataset for dataset, _ in chosen):
        work.take(dataset, [figure for name, figure in chosen if name == dataset])
    if with_phi:
        work.sections.append(phi_section(work.place))
    target = work.place / PAGE
    target.write_text(page(merge_sections(work.place, work.sections)) + "\n", encoding="utf-8")
    return Reproduction(target, tuple(work.sections), work.failures)


@dataclass
class DatasetRunner:
    """Runs the figures of one dataset after the other, and collects their sections and failures."""

    options: ReproductionOptions
    place: Path
    workers: int | None
    quiet: bool
    with_sound: bool
    sections: list[Section] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def take(self, dataset: str, figures: Sequence[Figure]) -> None:
        """Run, draw and judge the figures of a dataset."""
        if reason := missing_data_remedy(dataset, self.options):
            self.sections += [section_without_numbers(dataset, figure, f"data missing, {reason}") for figure in figures]
            return
        needed = {name for figure in figures for name in (figure.sources or (figure.name,))}
        definition = figures_sweep(dataset, self.options)
        measured = FinishedCells(dataset, self._cells(definition, self.options.folder(dataset), needed))
        if self.with_sound:
            measured.sound_cells = self._cells(
                sound_sweep(dataset, self.options),
                f"{self.options.folder(dataset)}-sound",
                {figure.sound_question.figure for figure in figures},
            )
        self.sections += [self._section(dataset, figure, measured) for figure in figures]

    def _cells(self, definition: Definition, name: str, needed: set[str]) -> list[CellResult]:
        """Run the cells of some figures and return all cells.

        All figures of the dataset share one sweep.
        """
        from crfl_experiments.sweeps.folder import SweepFolder
        from crfl_experiments.sweeps.sweep_runner import run_sweep

        def wanted(cell: Cell) -> bool:
            return cell.settings[FIGURE_KEY] in needed

        folder = self.place / "sweeps" / name
        self.failures |= run_sweep(definition, folder, self.workers, quiet=self.quiet, only=wanted)
        kept = SweepFolder.open(folder)
        # The cells as they were defined here: a table that was written and read has its keys in another order.
        return [CellResult(cell, kept.cell(cell.name), kept.note(cell.name)) for cell in definition.cells()]

    def _section(self, dataset: str, figure: Figure, measured: FinishedCells) -> Section:
        """Build the section of a figure from its finished cells."""
        from crfl_experiments.paper.page import number_table
        from crfl_experiments.paper.plots import draw_figure

        points = measured.points(figure)
        if not points:
            return section_without_numbers(dataset, figure, "no cell is finished, see the notes of the sweep")
        answers = measured.answers(figure, points)
        drawing = draw_figure(figure, points, answers, measured.noise_free(figure))
        return Section(
            f"{dataset}/{figure.name}",
            figure.title,
            figure.number,
            dataset,
            tuple(measured.findings(figure, points)),
            figure.notes,
            save_drawing(drawing, f"{dataset}-{figure.name}.svg", self.place),
            number_table(figure, points, answers),
            measured.sound_remark(figure, answers) if self.with_sound else (),
            describe_options(self.options),
        )


def select_figures(figures: Sequence[str]) -> tuple[list[Chosen], bool]:
    """Return the chosen figures in the order of the paper.

    The second value says whether the study of Phi is chosen.
    """
    known = [(dataset, figure) for dataset in DATASETS for figure in FIGURES if dataset in figure.datasets]
    answers = {name for name in figures if name == phi.NAME}
    found = []
    for dataset, figure in known:
        own = {dataset, figure.name, f"{dataset}/{figure.name}"} & set(figures)
        answers |= own
        if own or not figures:
            found.append((dataset, figure))
    if unknown := [name for name in figures if name not in answers]:
        raise ConfigError(f"there is no figure {unknown[0]!r}: `crfl paper reproduce --list` names all of them")
    return found, not figures or phi.NAME in figures


def section_without_numbers(dataset: str, figure: Figure, reason: str) -> Section:
    """Build the section of a figure that could not be measured."""
    findings = tuple(
        Finding(claim.quotation, claim.section, test.words, "", "not measured", reason)
        for claim in figure.claims
        for test in claim.tests
    )
    return Section(f"{dataset}/{figure.name}", figure.title, figure.number, dataset, findings, figure.notes)


def phi_section(place: Path) -> Section:
    """Build the section of the study of Phi, which is formulas alone."""
    study = phi.Study()
    finding = Finding(phi.QUOTATION, phi.SECTION, phi.WORDS, study.measured_text(), judge_claim(study.margins()))
    picture = save_drawing(study.figure(), f"{phi.NAME}.svg", place)
    return Section(phi.NAME, phi.TITLE, phi.NUMBER, "formulas", (finding,), (phi.NOTE,), picture, beside=(phi.BESIDE,))


def save_drawing(drawing: Drawing, name: str, place: Path) -> str:
    """Save a picture and return its file name."""
    from crfl_reports.figures import image_of

    from crfl_experiments.paper.plots import compress_svg

    folder = place / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(compress_svg(image_of(drawing, "svg")))
    return name


def merge_sections(place: Path, sections: Sequence[Section]) -> list[Section]:
    """Merge these figures with those already in the folder.

    An earlier command left those.
    """
    file = place / SECTIONS
    known = [*read_sections(file), *sections]
    order = list(figure_titles())
    found = sorted(
        {one.name: one for one in known if one.name in order}.values(), key=lambda one: order.index(one.name)
    )
    place.mkdir(parents=True, exist_ok=True)
    file.write_bytes(to_json(found, indent=1))
    return found


def read_sections(file: Path) -> list[Section]:
    """Read the sections of an earlier command.

    The list is empty if another version wrote them or the file is missing.
    """
    try:
        return TypeAdapter(list[Section]).validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return []


def describe_options(options: ReproductionOptions) -> str:
    """Describe what was run, in a few words."""
    said = "one seed" if options.seeds == 1 else f"{options.seeds} seeds, lines are means and bands the range"
    size = (
        "`--fast`, which is 400 test samples, and fewer local steps at a higher rate, with the same tau eta"
        if options.fast
        else "runs as large as the paper's"
    )
    size += ", as the authors' code does it (`--authors`)" if options.authors else ""
    other = f"; set otherwise: {', '.join(f'`{one}`' for one in options.overrides)}" if options.overrides else ""
    return f"{said}; {size}{other}"


FIRST = {"mnist": 5000}
"""Test samples that the paper certifies, where runs certify more."""


@dataclass
class FinishedCells:
    """Finished cells of a dataset: those of the paper's figures, and those of the sound certificate."""

    dataset: str
    cells: Sequence[CellResult]
    sound_cells: Sequence[CellResult] = field(default_factory=list)

    def points(self, figure: Figure) -> list[Point]:
        """Return the points of a figure or of its source figures."""
        sources = [one for one in figures_with_cells(self.dataset) if one.name in (figure.sources or (figure.name,))]
        return [point for one in sources for point in group_cells(self._source(one), self._own(one))]

    def noise_free(self, figure: Figure) -> Point | None:
        """Return the runs of a figure without noise.

        The result is None if the figure has none.
        """
        return noise_free_point(self._source(figure), self._own(figure))

    def answers(self, figure: Figure, points: Sequence[Point]) -> list[SoundAnswer]:
        """Return the sound certificate's answers to the question of a figure."""
        values = [point.value for point in points]
        return find_answers(
            figure.sound_question, list(dict.fromkeys(values)), self.sound_cells, FIRST.get(self.dataset)
        )

    def findings(self, figure: Figure, points: Sequence[Point]) -> Iterator[Finding]:
        """Yield every test of every claim.

        Where the paper takes a part of the test samples, a test is also judged for all of them.
        """
        parts = [point for point in points if any(is_part(point))] and figure.name != "closeness"
        for claim in figure.claims:
            for test in claim.tests:
                everything = judge_claim(test.margins([point.everything for point in points])) if parts else None
                said = judge_claim(test.margins(points))
                yield Finding(
                    claim.quotation, claim.section, test.words, test.measured_text(points), said, everything=everything
                )

    def sound_remark(self, figure: Figure, found: Sequence[SoundAnswer]) -> tuple[str, ...]:
        """Describe the question to the sound certificate.

        The remark also has the accuracy of its models.
        """
        if not found:
            return (f"*Sound:* {figure.sound_question.words} Not measured: no cell is finished.",)
        accuracy = format_mean(found[0].accuracy)
        return (f"*Sound:* {figure.sound_question.words} Accuracy of its model: {accuracy}.",)

    def _source(self, figure: Figure) -> Source:
        return Source(figure.name, figure.axis, figure.loose_round, FIRST.get(self.dataset))

    def _own(self, figure: Figure) -> list[CellResult]:
        return [one for one in self.cells if one.settings[FIGURE_KEY] == figure.name]


def is_part(point: Point) -> Iterator[bool]:
    """Return whether cells have more test samples than count."""
    for one in point.readings.values():
        yield one.first is not None and one.cell.run.ledger.facts.test_sets["clean"].samples > one.first
