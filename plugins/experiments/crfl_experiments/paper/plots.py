"""Plots of the paper's figures: means over seeds, and bands from the smallest to the largest.

Lines called "sound" are what a sound certificate answers, the same at every radius, in black. Thin dashed lines are the
accuracy of the model itself, without the noise of the votes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from crfl_experiments.paper.figures import FIGURES, Figure
from crfl_experiments.paper.readings import BACKDOORED, CLEAN, Array, Point, Reading
from crfl_experiments.paper.sound_answers import SoundAnswer, distance_bounds

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


def draw_figure(
    figure: Figure, points: Sequence[Point], sound: Sequence[SoundAnswer], noise_free: Point | None
) -> Drawing:
    """Draw a figure of the paper."""
    from crfl_reports.figures import panels_figure

    if figure.name == "closeness":
        marked = sorted({one.attacked for point in points for one in point.readings.values()})
        return panels_figure([distance_panel(figure, points, sound)], marked="attacked rounds" if marked else "")
    if figure.sources:
        sources = [one for one in FIGURES if one.name in figure.sources]
        grouped = [(one, [point for point in points if point.figure == one.name]) for one in sources]
        panels = [one for source, own in grouped if own for one in curve_panels(source, own, sound, BACKDOORED)]
        return panels_figure(panels, each=True)
    panels = curve_panels(figure, points, sound, CLEAN)
    if figure.shows_rate:
        panels = [
            add_model_accuracies(panels[0], figure, points, noise_free),
            *curve_panels(figure, points, sound, CLEAN, rate=True),
        ]
    return panels_figure(panels, thin=THIN)


def curve_panels(
    figure: Figure, points: Sequence[Point], sound: Sequence[SoundAnswer], test_set: str, *, rate: bool = False
) -> list[Panel]:
    """Return a panel for each series.

    It shows certified accuracy, or with `rate` the certified rate, against the radius.
    """
    from crfl_reports.figures import Panel

    label = "certified rate" if rate else "certified accuracy"
    panels = []
    for series in dict.fromkeys(point.series for point in points):
        own = [point for point in points if point.series == series]
        end = 1.02 * max(reach_of(point, test_set) for point in own) or 1.0
        lines = []
        for point in own:
            radii = line_radii(reach_of(point, test_set), end)
            lines.append(
                band_line(value_label(figure, point.value), radii, of_seeds(point, share_at(radii, test_set, rate)))
            )
        lines += sound_lines(figure, sound, end, test_set, rate=rate)
        # A series is a rule: its own name says which, whatever the title of the figure does.
        title = figure.title.partition(" under ")[0] if test_set == BACKDOORED else ""
        title = ": ".join(filter(None, (title, series)))
        panels.append(Panel(lines, "radius", label, title))
    return panels


def reach_of(point: Point, test_set: str) -> float:
    """Return the largest radius of a sample, of all seeds."""
    return max(one.samples(test_set).reach for one in point.readings.values())


def line_radii(reach: float, end: float) -> Array:
    """Return the radii at which a line is drawn.

    They run up to the line's own reach; beyond it the line is 0.
    """
    return np.array([*np.linspace(0.0, reach, RADII), reach * (1 + 1e-9), end])


def share_at(radii: Array, test_set: str, rate: bool) -> Callable[[Reading], Array]:
    """Return a function that reads a cell's certified accuracy.

    It reads the accuracy at some radii, or with `rate` the certified rate.
    """

    def of(one: Reading) -> Array:
        samples = one.samples(test_set)
        return samples.rate(list(radii)) if rate else samples.accuracy(list(radii))

    return of


def sound_lines(figure: Figure, answers: Sequence[SoundAnswer], end: float, test_set: str, *, rate: bool) -> list[Line]:
    """Return a horizontal line for each sound answer.

    Lines that coincide have one name.
    """
    shares = [answer.share(test_set, rate=rate) for answer in answers]
    order = sorted(range(len(answers)), key=lambda place: float(np.mean(shares[place])))
    groups: list[list[int]] = []
    for place in order:
        if groups and np.mean(shares[place]) - np.mean(shares[groups[-1][0]]) < ONE_LINE:
            groups[-1].append(place)
        else:
            groups.append([place])
    names = {place: sound_label(figure, [answers[one] for one in sorted(group)]) for group in groups for place in group}
    ends = np.array([0.0, end])
    return [
        band_line(names[place], ends, np.array([[one] * 2 for one in found]), dark=True)
        for place, found in enumerate(shares)
    ]


def add_model_accuracies(panel: Panel, figure: Figure, points: Sequence[Point], noise_free: Point | None) -> Panel:
    """Add the accuracies of the models themselves to a panel."""
    from crfl_reports.figures import Line, Panel

    ends = [0.0, float(np.asarray(panel.lines[0].x)[-1])]
    lines = list(panel.lines)
    for point in points:
        name = value_label(figure, point.value)
        lines.append(Line(name, ends, [np.mean(point.of(base_accuracy))] * 2, like=name))
    if noise_free is not None:
        lines.append(Line(NOISE_FREE, ends, [np.mean(noise_free.of(base_accuracy))] * 2))
    return Panel(lines, panel.x_label, panel.y_label, panel.title)


def base_accuracy(one: Reading) -> float:
    """Return the accuracy of the model itself."""
    return one.base_accuracy


def distance_panel(figure: Figure, points: Sequence[Point], sound: Sequence[SoundAnswer]) -> Panel:
    """Return the distance from the attacked round on.

    The panel also shows the bound that no attack exceeds.
    """
    from crfl_reports.figures import Panel

    lines = []
    bounds = []
    for point in points:
        first = next(iter(point.readings.values()))
        rounds = np.arange(first.attacked, first.attacked + len(first.distances), dtype=np.float64)
        lines.append(band_line(value_label(figure, point.value), rounds, of_seeds(point, lambda one: one.distances)))
        for answer in sound:
            found = distance_bounds(answer, first.attacked)
            ends = first.attacked + np.arange(found.shape[1], dtype=np.float64)
            bounds.append(band_line(f"sound bound, {value_label(figure, point.value)}", ends, found, dark=True))
    marked = sorted({one.attacked for point in points for one in point.readings.values()})
    return Panel([*lines, *bounds], "round", "distance to the clean model, L2 norm", log_y=bool(bounds), marked=marked)


def value_label(figure: Figure, value: float) -> str:
    """Return the legend's name of a value of the axis."""
    return f"{figure.symbol} = {value:g}"


def sound_label(figure: Figure, answers: Sequence[SoundAnswer]) -> str:
    """Return the legend's name of some answers."""
    values = ", ".join(f"{answer.value:g}" for answer in answers if answer.value is not None)
    return f"sound, {figure.symbol} = {values}" if values else "sound"


def of_seeds(point: Point, of: Callable[[Reading], Array]) -> Array:
    """Return a row for each seed."""
    return np.array([of(one) for one in point.readings.values()])


def band_line(name: str, x: Array, rows: Array, *, dark: bool = False) -> Line:
    """Return the mean over seeds, with a band if there are several."""
    from crfl_reports.figures import Line

    if len(rows) == 1:
        return Line(name, x, rows[0], dark=dark)
    return Line(name, x, rows.mean(axis=0), rows.min(axis=0), rows.max(axis=0), dark=dark)


def compress_svg(picture: bytes) -> bytes:
    """Round coordinates to two digits and remove indentation.

    Two digits are a hundredth of a point. The texts of the image stay.

    >>> compress_svg(b'<path d="M 12.345678 -0.1 \\n  L 3 4.5004"/><text x="1.2345">sigma = 0.005</text>')
    b'<path d="M 12.35 -0.1 \\nL 3 4.5"/><text x="1.23">sigma = 0.005</text>'
    """

    def rounded(tag: re.Match[bytes]) -> bytes:
        return LONG_NUMBER.sub(lambda found: b"%g" % round(float(found[0]), 2), tag[0])

    return INDENTATION.sub(b"\n", TAG.sub(rounded, picture))
