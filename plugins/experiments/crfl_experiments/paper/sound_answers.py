"""Answers of a sound certificate to the questions of the paper's figures.

A figure asks how much of a test set is certified if R clients attack in a round, at every radius r of the backdoor. The
certificate `pathwise-linear` answers for clients: it is the share that is classified correctly and as without the
attack, for any updates that R clients submit in that round. That includes every backdoor of every radius, every scale
and every poison ratio, so it is one number for all r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crfl_core.certification.drift import DriftBound
from crfl_experiments.paper.readings import CLEAN, Array, Point, Reading, Source, group_cells
from crfl_experiments.paper.sweep_files import FIGURE_KEY

if TYPE_CHECKING:
    from crfl_experiments.sweeps.results import CellResult

CERTIFICATE = "pathwise-linear"
DEFAULT = "table1"


@dataclass(frozen=True)
class SoundQuestion:
    """Question of a figure, put to the sound certificate; `words` say what is comparable.

    `axis` is what is varied there as well, empty if the answer is the same for all values; `figure` are the cells that
    hold the answers. It is certified against `attackers` clients; None: the number on the figure's axis.
    """

    words: str
    figure: str = DEFAULT
    axis: str = ""
    attackers: int | None = 1


@dataclass(frozen=True)
class SoundAnswer:
    """Answer of the sound certificate at a point of a figure; `value` is None if it holds at all points."""

    value: float | None
    attackers: int
    point: Point

    def share(self, test_set: str = CLEAN, *, rate: bool = False) -> list[float]:
        """Return certified accuracy, or rate, at every radius, of every seed."""

        def of(one: Reading) -> float:
            samples = one.samples(test_set)
            attackers = [float(self.attackers)]
            return float((samples.rate if rate else samples.accuracy)(attackers)[0])

        return self.point.of(of)

    @property
    def accuracy(self) -> list[float]:
        """Return the accuracy of every seed.

        The predictions of this certificate are the model's own.
        """
        return self.point.of(lambda one: float(one.samples().right.mean()))

    @property
    def everything(self) -> SoundAnswer:
        """Return the answer for all test samples."""
        return SoundAnswer(self.value, self.attackers, self.point.everything)


def find_answers(
    beside: SoundQuestion, values: Sequence[float], cells: Sequence[CellResult], first: int | None
) -> list[SoundAnswer]:
    """Return the answers at the values of a figure's axis.

    Values without an answer are left out.
    """
    own = [one for one in cells if one.settings[FIGURE_KEY] == beside.figure]
    points = group_cells(Source(beside.figure, beside.axis, first=first, certificate=CERTIFICATE), own)
    if not points:
        return []
    if beside.axis:
        return [SoundAnswer(one.value, beside.attackers or 1, one) for one in points if one.value in values]
    if beside.attackers is None:
        return [SoundAnswer(value, int(value), points[0]) for value in values]
    return [SoundAnswer(None, beside.attackers, points[0])]


def distance_bounds(answer: SoundAnswer, attacked: int) -> Array:
    """Bound the distance to the clean model after one client's attack.

    The bounds are by seed and round. They come from formulas alone: what the client may submit is capped, and every
    later round keeps only a part of a difference.
    """
    rows = []
    for one in answer.point.readings.values():
        run = one.cell.run
        threat = run.threat.model_copy(update={"rounds": (attacked,)})
        rounds = range(attacked, run.ledger.facts.rounds + 1)
        scenarios = [DriftBound(run.ledger, threat, number) for number in rounds]
        rows.append([float(each.client_costs()[answer.attackers]) + each.rounding for each in scenarios])
    return np.array(rows)
