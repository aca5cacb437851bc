"""`reproduce`: run figures of the paper, and judge what it says of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from crfl_core.errors import ConfigError
from crfl_experiments.paper import phi
from crfl_experiments.paper.claims import verdict
from crfl_experiments.paper.figures import BOOK, DATASETS, Figure, swept
from crfl_experiments.paper.page import PICTURES, Finding, Section, page
from crfl_experiments.paper.readings import Point, Source, noise_free, points_of, spread
from crfl_experiments.paper.sound_answers import Answer, answers
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
    authors: bool = False,
    sound: bool = True,
    out: str | Path = "reproduction",
    overrides: Sequence[str] = (),
    workers: int | None = None,
    quiet: bool = True,
) -> Reproduction:
    """Run figures of the paper, all if none is named, draw them and write one page; goes on where it stopped.

    The page keeps the figures that the same folder had before. One is named as in `names`, or by its dataset or its
    name alone. `fast` takes few test samples and fewer,
    larger local steps; `authors` does what their published code does where the paper says something else. `sound` puts
    the same questions to a sound certificate. `overrides` are `key=value` texts that count in every cell, above what
    figures fix.
    """
    options = ReproductionOptions(seeds, fast, tuple(overrides), authors=authors)
    chosen, with_phi = select(figures)
    work = Work(options, Path(out), workers, quiet=quiet, with_sound=sound)
    for dataset in dict.fromkeys(dataset for dataset, _ in chosen):
        work.take(dataset, [figure for name, figure in chosen if name == dataset])
    if with_phi:
        work.sections.append(phi_section(work.place))
    target = work.place / PAGE
    target.write_text(page(kept(work.place, work.sections)) + "\n", encoding="utf-8")
    return Reproduction(target, tuple(work.sections), work.failures)


@dataclass
class Work:
    """Datasets one after the other, and what came of them so far."""

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
            self.sections += [unmeasured(dataset, figure, f"data missing, {reason}") for figure in figures]
            return
        needed = {name for figure in figures for name in (figure.takes or (figure.name,))}
        definition = figures_sweep(dataset, self.options)
        measured = Measured(dataset, self._cells(definition, self.options.folder(dataset), needed))
        if self.with_sound:
            measured.sound_cells = self._cells(
                sound_sweep(dataset, self.options),
                f"{self.options.folder(dataset)}-sound",
                {figure.beside.figure for figure in figures},
            )
        self.sections += [self._section(dataset, figure, measured) for figure in figures]

    def _cells(self, definition: Definition, name: str, needed: set[str]) -> list[CellResult]:
        """Run the cells of some figures in the one sweep that all figures of a dataset share; all of its cells."""
        from crfl_experiments.sweeps.folder import SweepFolder
        from crfl_experiments.sweeps.sweep_runner import run_sweep

        def wanted(cell: Cell) -> bool:
            return cell.settings[FIGURE_KEY] in needed

        folder = self.place / "sweeps" / name
        self.failures |= run_sweep(definition, folder, self.workers, quiet=self.quiet, only=wanted)
        kept = SweepFolder.existing(folder)
        # The cells as they were defined here: a table that was written and read has its keys in another order.
        return [CellResult(cell, kept.cell(cell.name), kept.note(cell.name)) for cell in definition.cells()]

    def _section(self, dataset: str, figure: Figure, measured: Measured) -> Section:
        """A figure from its finished cells."""
        from crfl_experiments.paper.page import number_table
        from crfl_experiments.paper.plots import drawn

        points = measured.points(figure)
        if not points:
            return unmeasured(dataset, figure, "no cell is finished, see the notes of the sweep")
        answers = measured.answers(figure, points)
        drawing = drawn(figure, points, answers, measured.noise_free(figure))
        return Section(
            f"{dataset}/{figure.name}",
            figure.title,
            figure.number,
            dataset,
            tuple(measured.findings(figure, points)),
            figure.notes,
            saved(drawing, f"{dataset}-{figure.name}.svg", self.place),
            number_table(figure, points, answers),
            measured.told(figure, answers) if self.with_sound else (),
            how(self.options),
        )


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
    return Section(phi.NAME, phi.TITLE, phi.NUMBER, "formulas", (finding,), (phi.NOTE,), picture, beside=(phi.BESIDE,))


def saved(drawing: Drawing, name: str, place: Path) -> str:
    """Write a picture; returns its name."""
    from crfl_reports.figures import image_of

    from crfl_experiments.paper.plots import small

    folder = place / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(small(image_of(drawing, "svg")))
    return name


def kept(place: Path, sections: Sequence[Section]) -> list[Section]:
    """These figures and those that an earlier command left in the folder, in the order of the book."""
    file = place / SECTIONS
    known = [*read_sections(file), *sections]
    order = list(names())
    found = sorted(
        {one.name: one for one in known if one.name in order}.values(), key=lambda one: order.index(one.name)
    )
    place.mkdir(parents=True, exist_ok=True)
    file.write_bytes(to_json(found, indent=1))
    return found


def read_sections(file: Path) -> list[Section]:
    """What an earlier command left; nothing if it is of another version, since runs are kept and read again soon."""
    try:
        return TypeAdapter(list[Section]).validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return []


def how(options: ReproductionOptions) -> str:
    """What was run, in a few words."""
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
"""How many test samples the paper certifies, where runs certify more."""


@dataclass
class Measured:
    """Cells of the paper's figures on a dataset, and of the sound certificate."""

    dataset: str
    cells: Sequence[CellResult]
    sound_cells: Sequence[CellResult] = field(default_factory=list)

    def points(self, figure: Figure) -> list[Point]:
        """The points of a figure, or of all those that it takes."""
        sources = [one for one in swept(self.dataset) if one.name in (figure.takes or (figure.name,))]
        return [point for one in sources for point in points_of(self._source(one), self._own(one))]

    def noise_free(self, figure: Figure) -> Point | None:
        """The runs of a figure without noise, if it has some."""
        return noise_free(self._source(figure), self._own(figure))

    def answers(self, figure: Figure, points: Sequence[Point]) -> list[Answer]:
        """What the sound certificate says to the question of a figure."""
        values = [point.value for point in points]
        return answers(figure.beside, list(dict.fromkeys(values)), self.sound_cells, FIRST.get(self.dataset))

    def findings(self, figure: Figure, points: Sequence[Point]) -> Iterator[Finding]:
        """Every test of every claim; once more on all test samples where the paper has a part of them."""
        parts = [point for point in points if any(is_part(point))] and figure.name != "closeness"
        for claim in figure.claims:
            for test in claim.tests:
                everything = verdict(test.margins([point.everything for point in points])) if parts else None
                said = verdict(test.margins(points))
                yield Finding(
                    claim.quotation, claim.section, test.words, test.told(points), said, everything=everything
                )

    def told(self, figure: Figure, found: Sequence[Answer]) -> tuple[str, ...]:
        """What the sound certificate was asked, and how accurate its models are."""
        if not found:
            return (f"*Sound:* {figure.beside.words} Not measured: no cell is finished.",)
        accuracy = spread(found[0].accuracy)
        return (f"*Sound:* {figure.beside.words} Accuracy of its model: {accuracy}.",)

    def _source(self, figure: Figure) -> Source:
        return Source(figure.name, figure.axis, figure.loose_round, FIRST.get(self.dataset))

    def _own(self, figure: Figure) -> list[CellResult]:
        return [one for one in self.cells if one.settings[FIGURE_KEY] == figure.name]


def is_part(point: Point) -> Iterator[bool]:
    """Whether cells have more test samples than count."""
    for one in point.readings.values():
        yield one.first is not None and one.cell.run.ledger.facts.test_sets["clean"].samples > one.first
