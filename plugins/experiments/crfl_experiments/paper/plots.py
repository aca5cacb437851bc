"""The figures of the paper, from what was measured: means over seeds, and bands from the smallest to the largest.

Lines called "sound" are what a sound certificate answers, the same at every radius, in black. Thin dashed lines are the
accuracy of the model itself, without the noise of the votes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from crfl_experiments.paper.figures import BOOK, Figure
from crfl_experiments.paper.readings import BACKDOORED, CLEAN, Array, Point, Reading
from crfl_experiments.paper.sound_answers import Answer, distance_bounds

if TYPE_CHECKING:
    from crfl_reports.figures import Line, Panel
    from matplotlib.figure import Figure as Drawing

RADII = 23
"""Points of a line up to the largest radius of a sample."""
NOISE_FREE = "trained without noise"
THIN = "accuracy of the model itself"
ONE_LINE = 0.01
"""Sound answers that differ by less are one line to the eye, and one entry of the legend."""
LONG_NUMBER = re.compile(rb"-?\d+\.\d{3,}")
INDENTATION = re.compile(rb"\n +")
TAG = re.compile(rb"<[^>]*>")


def drawn(figure: Figure, points: Sequence[Point], sound: Sequence[Answer], noise_free: Point | None) -> Drawing:
    """A figure of the book."""
    from crfl_reports.figures import panels_figure

    if figure.name == "closeness":
        marked = sorted({one.attacked for point in points for one in point.readings.values()})
        return panels_figure([distances(figure, points, sound)], marked="attacked rounds" if marked else "")
    if figure.takes:
        sources = [one for one in BOOK if one.name in figure.takes]
        grouped = [(one, [point for point in points if point.figure == one.name]) for one in sources]
        panels = [one for source, own in grouped if own for one in curves(source, own, sound, BACKDOORED)]
        return panels_figure(panels, each=True)
    panels = curves(figure, points, sound, CLEAN)
    if figure.shows_rate:
        panels = [with_bases(panels[0], figure, points, noise_free), *curves(figure, points, sound, CLEAN, rate=True)]
    return panels_figure(panels, thin=THIN)


def curves(
    figure: Figure, points: Sequence[Point], sound: Sequence[Answer], test_set: str, *, rate: bool = False
) -> list[Panel]:
    """A panel for each series: certified accuracy, or rate, against the radius."""
    from crfl_reports.figures import Panel

    label = "certified rate" if rate else "certified accuracy"
    panels = []
    for series in dict.fromkeys(point.series for point in points):
        own = [point for point in points if point.series == series]
        end = 1.02 * max(reach_of(point, test_set) for point in own) or 1.0
        lines = []
        for point in own:
            radii = places(reach_of(point, test_set), end)
            lines.append(line(named(figure, point.value), radii, of_seeds(point, share(radii, test_set, rate))))
        lines += sound_lines(figure, sound, end, test_set, rate=rate)
        # A series is a rule: its own name says which, whatever the title of the figure does.
        title = figure.title.partition(" under ")[0] if test_set == BACKDOORED else ""
        title = ": ".join(filter(None, (title, series)))
        panels.append(Panel(lines, "radius", label, title))
    return panels


def reach_of(point: Point, test_set: str) -> float:
    """The largest radius of a sample, of all seeds."""
    return max(one.samples(test_set).reach for one in point.readings.values())


def places(reach: float, end: float) -> Array:
    """Radii at which a line is drawn: up to its own reach, from where it is 0."""
    return np.array([*np.linspace(0.0, reach, RADII), reach * (1 + 1e-9), end])


def share(radii: Array, test_set: str, rate: bool) -> Callable[[Reading], Array]:
    """Certified rate or accuracy of a cell at some radii."""

    def of(one: Reading) -> Array:
        samples = one.samples(test_set)
        return samples.rate(list(radii)) if rate else samples.accuracy(list(radii))

    return of


def sound_lines(figure: Figure, answers: Sequence[Answer], end: float, test_set: str, *, rate: bool) -> list[Line]:
    """The same number at every radius, for each answer; those that lie on each other have one name."""
    shares = [answer.share(test_set, rate=rate) for answer in answers]
    order = sorted(range(len(answers)), key=lambda place: float(np.mean(shares[place])))
    groups: list[list[int]] = []
    for place in order:
        if groups and np.mean(shares[place]) - np.mean(shares[groups[-1][0]]) < ONE_LINE:
            groups[-1].append(place)
        else:
            groups.append([place])
    names = {place: sound_name(figure, [answers[one] for one in sorted(group)]) for group in groups for place in group}
    ends = np.array([0.0, end])
    return [
        line(names[place], ends, np.array([[one] * 2 for one in found]), dark=True)
        for place, found in enumerate(shares)
    ]


def with_bases(panel: Panel, figure: Figure, points: Sequence[Point], noise_free: Point | None) -> Panel:
    """The same with the accuracies of the models themselves."""
    from crfl_reports.figures import Line, Panel

    ends = [0.0, float(np.asarray(panel.lines[0].x)[-1])]
    lines = list(panel.lines)
    for point in points:
        name = named(figure, point.value)
        lines.append(Line(name, ends, [np.mean(point.of(base_accuracy))] * 2, like=name))
    if noise_free is not None:
        lines.append(Line(NOISE_FREE, ends, [np.mean(noise_free.of(base_accuracy))] * 2))
    return Panel(lines, panel.x_label, panel.y_label, panel.title)


def base_accuracy(one: Reading) -> float:
    """That of the model itself."""
    return one.base_accuracy


def distances(figure: Figure, points: Sequence[Point], sound: Sequence[Answer]) -> Panel:
    """The distance from the attacked round on, and what no attack exceeds."""
    from crfl_reports.figures import Panel

    lines = []
    bounds = []
    for point in points:
        first = next(iter(point.readings.values()))
        rounds = np.arange(first.attacked, first.attacked + len(first.distances), dtype=np.float64)
        lines.append(line(named(figure, point.value), rounds, of_seeds(point, lambda one: one.distances)))
        for answer in sound:
            found = distance_bounds(answer, first.attacked)
            ends = first.attacked + np.arange(found.shape[1], dtype=np.float64)
            bounds.append(line(f"sound bound, {named(figure, point.value)}", ends, found, dark=True))
    marked = sorted({one.attacked for point in points for one in point.readings.values()})
    return Panel([*lines, *bounds], "round", "distance to the clean model, L2 norm", log_y=bool(bounds), marked=marked)


def named(figure: Figure, value: float) -> str:
    """What the legend calls a value of the axis."""
    return f"{figure.symbol} = {value:g}"


def sound_name(figure: Figure, answers: Sequence[Answer]) -> str:
    """What the legend calls some answers."""
    values = ", ".join(f"{answer.value:g}" for answer in answers if answer.value is not None)
    return f"sound, {figure.symbol} = {values}" if values else "sound"


def of_seeds(point: Point, of: Callable[[Reading], Array]) -> Array:
    """A row for each seed."""
    return np.array([of(one) for one in point.readings.values()])


def line(name: str, x: Array, rows: Array, *, dark: bool = False) -> Line:
    """The mean over seeds, with a band if there are several."""
    from crfl_reports.figures import Line

    if len(rows) == 1:
        return Line(name, x, rows[0], dark=dark)
    return Line(name, x, rows.mean(axis=0), rows.min(axis=0), rows.max(axis=0), dark=dark)


def small(picture: bytes) -> bytes:
    """The same drawing with two digits behind the point, a hundredth of a point on paper, and without indentation.

    What is written in it stays.

    >>> small(b'<path d="M 12.345678 -0.1 \\n  L 3 4.5004"/><text x="1.2345">sigma = 0.005</text>')
    b'<path d="M 12.35 -0.1 \\nL 3 4.5"/><text x="1.23">sigma = 0.005</text>'
    """

    def rounded(tag: re.Match[bytes]) -> bytes:
        return LONG_NUMBER.sub(lambda found: b"%g" % round(float(found[0]), 2), tag[0])

    return INDENTATION.sub(b"\n", TAG.sub(rounded, picture))
