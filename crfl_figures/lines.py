"""Lines over an axis, with bands around them: one panel, or several that share a legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfl_figures.names import room, shortened
from crfl_figures.style import DASHES, MARKERS, PALETTE, own_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = NDArray[np.float64]

WIDTH, HEIGHT = 3.6, 2.5
"""Of a panel, in inches."""
LEFT, GAP, BOTTOM = 0.65, 0.75, 0.5
"""Room for ticks and labels: before the first panel, between two, below them."""
ENTRY = 0.19
"""Height of a line of the legend."""
MARKS = 12
"""A line has about so many markers: more would hide it."""
WHOLE = 20
"""Up to this range, whole numbers of a horizontal axis are marked one by one."""
LEGEND_NAME = 44


@dataclass(frozen=True)
class Line:
    """A line of a figure: `y` over `x`, and a band from `low` to `high` around it. What is not finite is not drawn."""

    name: str
    x: ArrayLike
    y: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None


@dataclass(frozen=True)
class Panel:
    """Lines over one axis. `y_range` is shown if given; `marked` are places of x that stand out, in grey."""

    lines: Sequence[Line]
    x_label: str
    y_label: str
    title: str = ""
    log_x: bool = False
    log_y: bool = False
    y_range: tuple[float, float] | None = None
    marked: Sequence[float] = ()


def lines_figure(
    lines: Sequence[Line], *, x_label: str, y_label: str, title: str = "", log_x: bool = False, log_y: bool = False
) -> Figure:
    """One panel with a legend beside it. Labels say the unit."""
    return panels_figure([Panel(lines, x_label, y_label, title, log_x, log_y)])


def panels_figure(panels: Sequence[Panel], *, title: str = "", marked: str = "") -> Figure:
    """Panels side by side with one legend to their right: equal names are equal lines. `marked` names what is grey."""
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    entries = [*filter(None, names), *([marked] if marked else ())]
    with own_style():
        from crfl_figures.paper import PaperFigure

        height = max(HEIGHT, ENTRY * len(entries))
        top = 0.15 + 0.25 * any(panel.title for panel in panels) + 0.3 * bool(title)
        right = LEFT + len(panels) * (WIDTH + GAP) - GAP
        size = right + (0.75 + room(entries, LEGEND_NAME) if entries else 0.15), BOTTOM + height + top
        figure = PaperFigure(figsize=size)
        shown: dict[str, Any] = {}
        for number, panel in enumerate(panels):
            axes = figure.panel(LEFT + number * (WIDTH + GAP), BOTTOM, WIDTH, height)
            shown |= draw(axes, panel, names)
            if panel.marked and marked:
                shown[marked] = mark(axes, panel.marked)
        if title:
            figure.suptitle(title, x=LEFT / size[0], y=1 - 0.12 / size[1], ha="left", va="top")
        if found := [name for name in entries if name in shown]:
            place = (right + 0.1) / size[0], (BOTTOM + height + 0.07) / size[1]
            handles, labels = [shown[name] for name in found], shortened(found, LEGEND_NAME)
            figure.legend(handles, labels, loc="upper left", bbox_to_anchor=place, borderaxespad=0, handlelength=3.2)
    return figure


def draw(axes: Axes, panel: Panel, names: Sequence[str]) -> dict[str, Any]:
    """The lines of one panel, and the artists that stand for them in a legend."""
    shown = {}
    for line in panel.lines:
        x, y = np.asarray(line.x, np.float64), np.asarray(line.y, np.float64)
        keep, place = np.isfinite(x) & np.isfinite(y), names.index(line.name)
        colour = PALETTE[place % len(PALETTE)]
        (shown[line.name],) = axes.plot(
            x[keep],
            y[keep],
            color=colour,
            linestyle=DASHES[place % len(DASHES)],
            marker=MARKERS[place % len(MARKERS)],
            markersize=3.5,
            markevery=max(1, int(keep.sum()) // MARKS),
            linewidth=1.4,
            clip_on=panel.y_range is None,
        )
        if line.low is not None and line.high is not None:
            low, high = np.asarray(line.low, np.float64)[keep], np.asarray(line.high, np.float64)[keep]
            axes.fill_between(x[keep], low, high, color=colour, alpha=0.18, linewidth=0)
    finish(axes, panel)
    return shown


def finish(axes: Axes, panel: Panel) -> None:
    """Scales, limits and labels."""
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_title(panel.title, loc="left")
    axes.grid(alpha=0.25, linewidth=0.6)
    if panel.log_x:
        axes.set_xscale("log")
    elif whole(panel.lines):
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(nbins=WHOLE // 2, integer=True))
    if panel.log_y:
        axes.set_yscale("log")
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)


def whole(lines: Sequence[Line]) -> bool:
    """Whether a horizontal axis counts something."""
    numbers: Numbers = np.concatenate([np.asarray(line.x, np.float64) for line in lines] or [np.zeros(0)])
    finite = numbers[np.isfinite(numbers)]
    return bool(len(finite)) and bool((finite == np.round(finite)).all())


def mark(axes: Axes, places: Sequence[float]) -> Any:
    """Grey lines at some places of the horizontal axis; neighbours grow together."""
    first = None
    for start, end in runs(places):
        first = axes.axvspan(start - 0.5, end + 0.5, color="0.5", alpha=0.25, linewidth=0, zorder=0)
    return first


def runs(places: Sequence[float]) -> list[tuple[float, float]]:
    """Numbers that follow each other, as first and last.

    >>> runs([3, 4, 5, 9])
    [(3, 5), (9, 9)]
    """
    found: list[tuple[float, float]] = []
    for place in sorted(places):
        if found and place - found[-1][1] <= 1:
            found[-1] = found[-1][0], place
        else:
            found.append((place, place))
    return found
