"""Lines over an axis, with bands around them: one panel, or several that share a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfl_reports.figures.style import DASHES, INK, MARKERS, PALETTE, own_style, room

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from crfl_reports.figures.paper_figure import PaperFigure

Numbers = NDArray[np.float64]

WIDTH = 3.6
HEIGHT = 2.5
"""Of a panel, in inches."""
LEFT = 0.38
BOTTOM = 0.5
"""Room for ticks and labels: before a panel, without the numbers, and below it."""
TITLE = 0.3
ENTRY = 0.19
"""Height of a line of the legend."""
MARKS = 12
"""A line has about this many markers: more would hide it."""
TICKS = 5
"""An axis has about this many numbers: more would touch each other if they are long."""
COUNTS = 8
"""The same for whole numbers, which are short."""
STEPS = [1, 2, 2.5, 5, 10]
LEGEND_NAME = 44
THIN: dict[str, Any] = {"linestyle": (0, (3, 2)), "linewidth": 0.8}
"""Lines that belong to others."""
BEYOND = 1.12
"""Place of infinity, as a multiple of the largest finite number."""


@dataclass(frozen=True)
class Line:
    """Line of a figure: `y` over `x`, and a band from `low` to `high` around it.

    A point at infinite x stands at the right end of the axis; what else is not finite is not drawn. With `like`, the
    name of another line, it belongs to that one: thin and dashed in the same colour, and not in the legend. What is
    `dark` looks the same in every figure, whatever else is drawn: black, the first such line without dashes.
    """

    name: str
    x: ArrayLike
    y: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    like: str = ""
    dark: bool = False


@dataclass(frozen=True)
class Panel:
    """Lines over one axis. `y_range` is shown if given; `marked` are places of x drawn in grey.

    With `steps`, the value at the larger of two neighbouring x holds between them: a falling curve claims nothing there
    that is only known of the smaller one.
    """

    lines: Sequence[Line]
    x_label: str
    y_label: str
    title: str = ""
    log_x: bool = False
    log_y: bool = False
    y_range: tuple[float, float] | None = None
    marked: Sequence[float] = ()
    steps: bool = False


@dataclass(frozen=True)
class Panels:
    """Panels that share a legend; `marked` is the legend's name for marked places."""

    panels: Sequence[Panel]
    title: str = ""
    marked: str = ""

    def figure(self) -> Figure:
        """Draw the panels."""
        return panels_figure(self.panels, title=self.title, marked=self.marked)


class Look(NamedTuple):
    """Colour, dashes and marker that tell a line from others."""

    colour: str
    dashes: Any
    marker: str


class Places(NamedTuple):
    """Lower left corners of panels, and their height, in inches."""

    corners: list[tuple[float, float]]
    height: float

    def beside(self, number: int) -> tuple[float, float]:
        """Return the corner at which the legend of a panel begins."""
        left, bottom = self.corners[number]
        return left + WIDTH + 0.1, bottom + self.height + 0.07


def lines_figure(
    lines: Sequence[Line], *, x_label: str, y_label: str, title: str = "", log_x: bool = False, log_y: bool = False
) -> Figure:
    """Draw one panel with a legend beside it. Labels say the unit."""
    return panels_figure([Panel(lines, x_label, y_label, title, log_x, log_y)])


def panels_figure(
    panels: Sequence[Panel], *, columns: int = 2, title: str = "", marked: str = "", thin: str = "", each: bool = False
) -> Figure:
    """Draw panels in rows, with one legend to their right.

    Lines with equal names are the same line. `marked` is what the legend calls the places that panels mark, `thin` what
    it calls lines that belong to others. With `each`, every panel has a legend of its own, and colours start again.
    """
    groups = [[panel] for panel in panels] if each else [panels]
    columns = min(columns, len(panels))
    with own_style():
        from crfl_reports.figures.paper_figure import PaperFigure

        figure = PaperFigure()
        legends = [draw_panels(figure, group, marked, thin) for group in groups]
        titles = TITLE * any(panel.title for panel in panels), TITLE * bool(title)
        places = arrange(figure, columns, legends, titles)
        figure.heading(title, places.corners[0][0])
        for number, entries in enumerate(legends):
            figure.beside(entries, *places.beside(number if each else columns - 1), LEGEND_NAME)
    return figure


def draw_panels(figure: PaperFigure, panels: Sequence[Panel], marked: str, thin: str) -> dict[str, Any]:
    """Draw panels that share a legend.

    Return the entries of the legend, which is not placed yet.
    """
    looks = looks_of(panels)
    shown = dict[str, Any]()
    for panel in panels:
        axes = figure.add_axes((0, 0, 1, 1))
        shown |= draw(axes, panel, looks)
        if panel.marked and marked:
            shown[marked] = mark(axes, panel.marked)
        elif panel.marked:
            mark(axes, panel.marked)
        if thin and any(line.like for line in panel.lines):
            shown[thin] = axes.plot([], [], color="0.3", **THIN)[0]
    ordered = [*filter(None, looks), thin, marked]
    return {name: shown[name] for name in ordered if name in shown}


def looks_of(panels: Sequence[Panel]) -> dict[str, Look]:
    """Choose the look of every name, in the order of the lines."""
    dark = {line.like or line.name: line.dark for panel in panels for line in panel.lines}
    looks = {}
    counts = {True: 0, False: 0}
    for name, is_dark in dark.items():
        place = counts[is_dark]
        counts[is_dark] += 1
        colour = INK if is_dark else PALETTE[place % len(PALETTE)]
        looks[name] = Look(colour, DASHES[place % len(DASHES)], MARKERS[place % len(MARKERS)])
    return looks


def arrange(
    figure: PaperFigure, columns: int, legends: Sequence[Mapping[str, Any]], titles: tuple[float, float]
) -> Places:
    """Place panels in rows, with room for numbers, names and titles."""
    left = LEFT + max(room(numbers(axes)) for axes in figure.axes)
    rows = -(-len(figure.axes) // columns)
    most = max(map(len, legends))
    names = 0.75 + max(room([*one], LEGEND_NAME) for one in legends) if most else 0.15
    height = HEIGHT if rows > 1 else max(HEIGHT, ENTRY * most)
    strip = height + BOTTOM + 0.1 + titles[0]
    step = WIDTH + left + 0.1
    if len(legends) > 1:
        step += names
    across = columns * step - 0.1 + (names if len(legends) == 1 else 0.0)
    figure.set_size_inches(across, rows * strip + 0.05 + titles[1])
    corners = []
    for number, axes in enumerate(figure.axes):
        row, column = divmod(number, columns)
        corners.append((left + column * step, (rows - row - 1) * strip + BOTTOM))
        figure.place(axes, *corners[-1], WIDTH, height)
    return Places(corners, height)


def numbers(axes: Axes) -> list[str]:
    """Return the labels beside the vertical axis."""
    return [str(label) for label in axes.yaxis.get_major_formatter().format_ticks([*axes.get_yticks()])]


def draw(axes: Axes, panel: Panel, looks: Mapping[str, Look]) -> dict[str, Any]:
    """Draw the lines of one panel and return their legend artists."""
    shown = {}
    end = right_end(axes, panel)
    for line in panel.lines:
        x = np.asarray(line.x, np.float64)
        y = np.asarray(line.y, np.float64)
        x = np.where(np.isposinf(x), end, x)
        keep = np.isfinite(x) & np.isfinite(y)
        look = looks[line.like or line.name]
        if line.like:
            drawstyle = "steps-pre" if panel.steps else "default"
            axes.plot(x[keep], y[keep], color=look.colour, zorder=1.5, drawstyle=drawstyle, **THIN)
        else:
            (shown[line.name],) = axes.plot(
                x[keep],
                y[keep],
                color=look.colour,
                linestyle=look.dashes,
                marker=look.marker,
                markersize=3.5,
                markevery=max(1, int(keep.sum()) // MARKS),
                linewidth=1.4,
                drawstyle="steps-pre" if panel.steps else "default",
                clip_on=panel.y_range is None,
            )
        if line.low is not None and line.high is not None:
            low = np.asarray(line.low, np.float64)[keep]
            high = np.asarray(line.high, np.float64)[keep]
            step: Literal["pre"] | None = "pre" if panel.steps else None
            axes.fill_between(x[keep], low, high, color=look.colour, alpha=0.18, linewidth=0, step=step)
    finish(axes, panel)
    return shown


def finish(axes: Axes, panel: Panel) -> None:
    """Set scales, limits and labels."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_title(panel.title, loc="left")
    axes.grid(alpha=0.25, linewidth=0.6)
    if panel.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")  # that of the scale writes formulas, which are shown as they are here
    if panel.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.yaxis.set_major_locator(MaxNLocator(TICKS, steps=STEPS))
        axes.yaxis.set_major_formatter("{x:,g}")
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)


def right_end(axes: Axes, panel: Panel) -> float:
    """Return the place of infinity on this axis and mark it.

    The axis gets ticks that show infinity.
    """
    from matplotlib.ticker import MaxNLocator

    found: Numbers = np.concatenate([np.asarray(line.x, np.float64) for line in panel.lines] or [np.zeros(0)])
    finite = found[np.isfinite(found)]
    largest = float(finite.max(initial=0.0))
    whole = bool((finite == np.round(finite)).all())
    end = BEYOND * largest or 1.0
    if np.isposinf(found).any() and not panel.log_x:
        ticks = [
            tick
            for tick in MaxNLocator(TICKS, steps=STEPS, integer=whole).tick_values(0, largest or 1)
            if tick <= largest
        ]
        axes.set_xticks([*ticks, end], labels=[*(f"{tick:g}" for tick in ticks), "∞"])
    elif not panel.log_x:
        axes.xaxis.set_major_locator(MaxNLocator(COUNTS if whole else TICKS, steps=STEPS, integer=whole))
        axes.xaxis.set_major_formatter("{x:,g}")
    return end


def mark(axes: Axes, places: Sequence[float]) -> Any:
    """Draw grey stripes at some places of the horizontal axis; neighbours join."""
    stripe = None
    for start, end in stretches(places):
        stripe = axes.axvspan(start - 0.5, end + 0.5, color="0.5", alpha=0.25, linewidth=0, zorder=0)
    return stripe


def stretches(places: Sequence[float]) -> list[tuple[float, float]]:
    """Join numbers that follow each other, as first and last.

    >>> stretches([3, 4, 5, 9])
    [(3, 5), (9, 9)]
    """
    found: list[tuple[float, float]] = []
    for place in sorted(places):
        if found and place - found[-1][1] <= 1:
            found[-1] = found[-1][0], place
        else:
            found.append((place, place))
    return found
