"""Beside the paper: the same questions put to a sound certificate.

A figure asks how much of a test set is certified if R clients attack in a round, at every radius r of the backdoor. The
certificate `pathwise-linear` answers for clients: so much is classified right, and as without the attack, whatever R of
them submit in that round. That includes every backdoor of every radius, every scale and every poison ratio, so it is
one number for all r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crfl_core.certification.drift import DriftBound
from crfl_experiments.paper.readings import CLEAN, Array, Point, Reading, Source, points_of
from crfl_experiments.paper.sweep_files import FIGURE_KEY
from crfl_experiments.sweeps.results import CellResult

CERTIFICATE = "pathwise-linear"
DEFAULT = "table1"


@dataclass(frozen=True)
class Beside:
    """How a figure's question is put to the sound certificate; `words` say what is comparable.

    `axis` is what is varied there as well, empty if the answer is the same for all values; `figure` are the cells that
    hold the answers. It is certified against so many `attackers`; None: as many as the figure's axis says.
    """

    words: str
    figure: str = DEFAULT
    axis: str = ""
    attackers: int | None = 1


@dataclass(frozen=True)
class Answer:
    """What the sound certificate says at a point of a figure; `value` is None if it is the same at all of them."""

    value: float | None
    attackers: int
    point: Point

    def share(self, test_set: str = CLEAN, *, rate: bool = False) -> list[float]:
        """Certified accuracy, or rate, at every radius, of every seed."""

        def of(one: Reading) -> float:
            samples = one.samples(test_set)
            attackers = [float(self.attackers)]
            return float((samples.rate if rate else samples.accuracy)(attackers)[0])

        return self.point.of(of)

    @property
    def accuracy(self) -> list[float]:
        """How much is classified right at all, of every seed: predictions of this certificate are the model's own."""
        return self.point.of(lambda one: float(one.samples().right.mean()))

    @property
    def everything(self) -> Answer:
        """The same with all test samples."""
        return Answer(self.value, self.attackers, self.point.everything)


def answers(beside: Beside, values: Sequence[float], cells: Sequence[CellResult], first: int | None) -> list[Answer]:
    """The answers at those values of a figure's axis at which there is one."""
    own = [one for one in cells if one.settings[FIGURE_KEY] == beside.figure]
    points = points_of(Source(beside.figure, beside.axis, first=first, certificate=CERTIFICATE), own)
    if not points:
        return []
    if beside.axis:
        return [Answer(one.value, beside.attackers or 1, one) for one in points if one.value in values]
    if beside.attackers is None:
        return [Answer(value, int(value), points[0]) for value in values]
    return [Answer(None, beside.attackers, points[0])]


def distance_bounds(answer: Answer, attacked: int) -> Array:
    """The distance to the clean model that no attack of one client in a round exceeds, from that round on; every seed.

    Formulas alone: what the client may submit is capped, and every later round keeps only a part of a difference.
    """
    rows = []
    for one in answer.point.readings.values():
        run = one.cell.run
        threat = run.threat.model_copy(update={"rounds": (attacked,)})
        rounds = range(attacked, run.ledger.facts.rounds + 1)
        scenarios = [DriftBound(run.ledger, threat, number) for number in rounds]
        rows.append([float(each.client_costs()[answer.attackers]) + each.rounding for each in scenarios])
    return np.array(rows)
