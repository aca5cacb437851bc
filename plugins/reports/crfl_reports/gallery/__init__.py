"""Figures of finished runs, by name. `crfl_reports.figures` draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from crfl_core.errors import ConfigError, suggest_names
from crfl_reports.figures import Grid, Panels
from crfl_reports.gallery.curves import backdoor, build_collective, build_curves
from crfl_reports.gallery.inputs import flips, samples
from crfl_reports.gallery.matrix import matrix
from crfl_reports.gallery.run_groups import only
from crfl_reports.gallery.training import closeness, partition_figure, rounds, weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from crfl_core.runs.results import RunResult


class Drawing(NamedTuple):
    """Figure of the gallery: its description, and the function that makes it from runs.

    The function raises a `CrflError` if the runs cannot be drawn. `Panels` and `Grid` are numbers, which pages draw in
    their own way.
    """

    description: str
    shows: Callable[[Sequence[RunResult]], Figure | Panels | Grid]

    def draw(self, runs: Sequence[RunResult]) -> Figure:
        """Draw some runs."""
        found = self.shows(runs)
        return found.figure() if isinstance(found, Panels | Grid) else found


def partition(runs: Sequence[RunResult]) -> Figure:
    """Draw the samples of every client by class."""
    return partition_figure(only(runs, "partition").metrics.partition)


FIGURES = {
    "curves": Drawing("certified accuracy and rate against the radius or the number of clients", build_curves),
    "collective": Drawing("collective certified accuracy beside that of single predictions", build_collective),
    "rounds": Drawing("accuracy and attack success rate in every round", rounds),
    "weights": Drawing("the weights p_i that reached the model in every round, attackers marked", weights),
    "partition": Drawing("who holds how many samples of which class", partition),
    "samples": Drawing("the trigger, inputs with it, and what attackers train on", samples),
    "flips": Drawing("what the trigger turns predictions into", flips),
    "closeness": Drawing("distance to the clean twin in every round; needs both runs, or kept distances", closeness),
    "backdoor": Drawing("certified accuracy by malicious clients and trigger norm, as colours", backdoor),
    "matrix": Drawing("attacks against defences; needs several runs", matrix),
}
"""Name, and what it shows; `plot` draws it."""


def plot(runs: Sequence[RunResult], figure: str = "curves") -> Figure:
    """Draw finished runs in one of the `FIGURES`.

    Runs that differ only in their seeds become a mean with a band.

    Raises `ConfigError` if there is no such figure, or if these runs cannot be drawn in it.
    """
    if figure not in FIGURES:
        hint = suggest_names(figure, FIGURES) or f"there are {', '.join(FIGURES)}"
        raise ConfigError(f"there is no figure {figure!r}: {hint}")
    if not runs:
        raise ConfigError(f"figure {figure!r} needs a run")
    return FIGURES[figure].draw(runs)
