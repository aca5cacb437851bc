"""Tables as colours: confusion of predictions, attacks against defences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfl_reports.figures.style import own_style, room, shorten_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from crfl_reports.figures.paper_figure import PaperFigure

COLOURS = "cividis"
"""Made for people with and without colour blindness (Nunez et al., 2018), and even in print."""
LETTER = 0.065
"""Inches that a letter of a heading takes."""
CELL = 0.42, 0.3
"""Width and height of a cell, in inches."""
LARGEST = 9.0
"""Inches of a table; the cells of larger ones are smaller, and hold no numbers."""
WRITTEN = 16
"""Up to this many columns, numbers are written into the cells."""
NAMED = 64
"""Up to about this many rows and columns have a name."""


@dataclass(frozen=True)
class Heat:
    """Table (rows, columns) of numbers that colours show; NaN is empty. `digits` are those written into cells.

    `limits` are the ends of the colours, by default those of the numbers. Where numbers are means, `low` and `high` are
    the smallest and largest of what they are the means of, and `counts` of how many.
    """

    values: ArrayLike
    label: str
    title: str = ""
    limits: tuple[float, float] | None = None
    digits: int = 0
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    counts: ArrayLike | None = None

    @property
    def numbers(self) -> NDArray[np.float64]:
        """Return the values as an array."""
        return np.asarray(self.values, np.float64)

    @property
    def ends(self) -> tuple[float, float]:
        """Return the numbers at which the colours begin and end."""
        seen = self.numbers[np.isfinite(self.numbers)]
        return self.limits or (float(seen.min(initial=0)), float(seen.max(initial=0)) or 1.0)


@dataclass(frozen=True)
class Grid:
    """Tables of the same rows and columns, with their names. `empty` is shown for a cell without a number.

    A figure has the first `drawn` tables side by side; a page has room for all of them.
    """

    tables: Sequence[Heat]
    rows: Sequence[str]
    columns: Sequence[str]
    y_label: str
    x_label: str
    title: str = ""
    empty: str = "none"
    drawn: int = 3

    def figure(self) -> Figure:
        """Draw the first tables."""
        shown = self.tables[: self.drawn]
        names = {"y_label": self.y_label, "x_label": self.x_label, "title": self.title}
        return heat_figure(shown, self.rows, self.columns, **names)


def heat_figure(
    tables: Sequence[Heat], rows: Sequence[str], columns: Sequence[str], *, y_label: str, x_label: str, title: str = ""
) -> Figure:
    """Draw tables of the same rows and columns side by side."""
    with own_style():
        from crfl_reports.figures.paper_figure import PaperFigure

        cell = min(CELL[0], LARGEST / len(columns)), min(CELL[1], LARGEST / len(rows))
        width = max(1.2, cell[0] * len(columns), LETTER * len(x_label), LETTER * len(title) / len(tables))
        height = max(0.9, cell[1] * len(rows))
        left = 0.55 + room(rows)
        bottom = 0.5 + room(columns)
        step = width + 1.15
        top = 0.15 + 0.25 * any(table.title for table in tables) + 0.3 * bool(title)
        figure = PaperFigure(figsize=(left + len(tables) * step, bottom + height + top))
        for number, table in enumerate(tables):
            axes = figure.panel(left + number * step, bottom, width, height)
            bar = figure.panel(left + number * step + width + 0.12, bottom, 0.13, height)
            draw(figure, axes, bar, table)
            every = -(-len(columns) // NAMED)
            axes.set_xticks(range(0, len(columns), every), labels=shorten_names(columns[::every]), rotation=90)
            axes.set_xlabel(x_label)
            every = -(-len(rows) // NAMED)
            axes.set_yticks(range(0, len(rows), every), labels=shorten_names(rows[::every]) if number == 0 else [])
            axes.tick_params(length=0)
            if number == 0:
                axes.set_ylabel(y_label)
        figure.heading(title, left)
    return figure


def draw(figure: PaperFigure, axes: Axes, bar: Axes, table: Heat) -> None:
    """Draw one table, with its numbers if there is room for them."""
    values, (low, high) = table.numbers, table.ends
    image = axes.imshow(np.ma.masked_invalid(values), COLOURS, vmin=low, vmax=high, aspect="auto")
    axes.set_title(table.title, loc="left")
    axes.spines[:].set_visible(True)
    figure.colorbar(image, cax=bar, label=table.label, format="{x:,g}")
    if values.shape[1] > WRITTEN or values.shape[0] > 2 * WRITTEN:
        return
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            dark = (value - low) / ((high - low) or 1.0) < 0.55
            text = f"{value:.{table.digits}f}"
            colour = "white" if dark else "black"
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
