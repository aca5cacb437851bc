"""The figures of the paper, from what was measured: means over seeds, and bands from the smallest to the largest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from crfl_paper.book import BOOK, Figure
from crfl_paper.readings import BACKDOORED, CLEAN, Array, Point, Reading

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from crfl_figures import Line, Panel

RADII = 41
"""Points of a line."""


def drawn(figure: Figure, points: Sequence[Point]) -> Drawing:
    """A figure of the book."""
    from crfl_figures import Panel, panels_figure

    if figure.name == "closeness":
        lines = [distance_line(figure, point) for point in points]
        marked = sorted({one.attacked for point in points for one in point.readings.values()})
        panel = Panel(lines, "round", "distance to the clean model, L2 norm", marked=marked)
        return panels_figure([panel], marked="attacked rounds")
    if figure.takes:
        sources = [one for one in BOOK if one.name in figure.takes]
        grouped = [(one, [point for point in points if point.figure == one.name]) for one in sources]
        panels = [one for source, own in grouped if own for one in curves(source, own, BACKDOORED)]
        return panels_figure(panels, columns=3)
    panels = curves(figure, points, CLEAN)
    if figure.shows_rate:
        panels += curves(figure, points, CLEAN, rate=True)
    return panels_figure(panels)


def curves(figure: Figure, points: Sequence[Point], test_set: str, *, rate: bool = False) -> list[Panel]:
    """A panel for each series: certified accuracy, or rate, against the radius."""
    from crfl_figures import Panel

    label = "certified rate" if rate else "certified accuracy"
    panels = []
    for series in dict.fromkeys(point.series for point in points):
        own = [point for point in points if point.series == series]
        reach = max(one.samples(test_set).reach for point in own for one in point.readings.values())
        radii = np.linspace(0.0, 1.02 * reach or 1.0, RADII)
        lines = [
            line(f"{figure.symbol} = {point.value:g}", radii, point, share(radii, test_set, rate)) for point in own
        ]
        title = " ".join(filter(None, (figure.title if test_set == BACKDOORED else "", series)))
        panels.append(Panel(lines, "radius", label, title))
    return panels


def share(radii: Array, test_set: str, rate: bool) -> Callable[[Reading], Array]:
    """Certified rate or accuracy of a cell at some radii."""

    def of(one: Reading) -> Array:
        samples = one.samples(test_set)
        return samples.rate(list(radii)) if rate else samples.accuracy(list(radii))

    return of


def distance_line(figure: Figure, point: Point) -> Line:
    """The distance from the attacked round on."""
    first = next(iter(point.readings.values()))
    rounds = np.arange(first.attacked, first.attacked + len(first.distances), dtype=np.float64)
    return line(f"{figure.symbol} = {point.value:g}", rounds, point, lambda one: one.distances)


def line(name: str, x: Array, point: Point, of: Callable[[Reading], Array]) -> Line:
    """The mean over seeds, with a band if there are several."""
    from crfl_figures import Line

    rows = np.array([of(one) for one in point.readings.values()])
    if len(rows) == 1:
        return Line(name, x, rows[0])
    return Line(name, x, rows.mean(axis=0), rows.min(axis=0), rows.max(axis=0))
