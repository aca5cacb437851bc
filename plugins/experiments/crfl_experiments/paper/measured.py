"""The finished cells of a dataset: points of figures, what claims come to, and what is sound beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from crfl_experiments.paper.beside import FIGURE, Answer, answers
from crfl_experiments.paper.book import Figure, swept
from crfl_experiments.paper.claims import verdict
from crfl_experiments.paper.measures import spread
from crfl_experiments.paper.page import Finding
from crfl_experiments.paper.readings import Point, Source, noise_free, points_of
from crfl_experiments.sweeps.result import CellResult

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
        return [one for one in self.cells if one.settings[FIGURE] == figure.name]


def is_part(point: Point) -> Iterator[bool]:
    """Whether cells have more test samples than count."""
    for one in point.readings.values():
        yield one.first is not None and one.cell.run.ledger.facts.test_sets["clean"].samples > one.first
