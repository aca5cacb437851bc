"""Inputs as pictures, or as bars if they are rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crfl_reports.figures.style import BLUE, VERMILLION, own_style, room, shorten_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = NDArray[np.floating[Any]]

SIDE = 0.85
GAP = 0.14
CAPTION = 0.32
"""Inches: of a picture, between two, and below one for its caption."""
BARS = 24
"""At most this many features of a table are drawn, those that change most."""


@dataclass(frozen=True)
class Row:
    """Pictures side by side: (pictures, height, width) or with 3 channels last, with a caption below each.

    `signed` pictures are differences: white is none, and colours say which way. `limits` are black and white else.
    """

    name: str
    pictures: Numbers
    captions: Sequence[str] = ()
    signed: bool = False
    limits: tuple[float, float] | None = None


def pictures_figure(rows: Sequence[Row], *, title: str = "") -> Figure:
    """Draw rows of pictures with their names on the left."""
    with own_style():
        from crfl_reports.figures.paper_figure import PaperFigure

        left = 0.15 + room([row.name for row in rows])
        top = 0.1 + 0.3 * bool(title)
        heights = [SIDE + (CAPTION if row.captions else GAP) for row in rows]
        most = max(len(row.pictures) for row in rows)
        figure = PaperFigure(figsize=(left + most * (SIDE + GAP) + GAP, sum(heights) + top + 0.05))
        up = sum(heights)
        for row, height in zip(rows, heights, strict=True):
            up -= height
            for number, picture in enumerate(row.pictures):
                below = up + height - SIDE + 0.05
                axes = figure.panel(left + GAP / 2 + number * (SIDE + GAP), below, SIDE, SIDE)
                show(axes, picture, row)
                if row.captions:
                    axes.set_xlabel(row.captions[number], fontsize=7, labelpad=2)
                if number == 0:
                    axes.set_ylabel(shorten_names([row.name])[0], rotation=0, ha="right", va="center")
        figure.heading(title, left)
    return figure


def show(axes: Axes, picture: Numbers, row: Row) -> None:
    """Draw one picture without ticks."""
    largest = float(np.abs(row.pictures).max(initial=0.0)) or 1.0
    low, high = row.limits or (float(row.pictures.min()), float(row.pictures.max()))
    if row.signed and picture.ndim == 2:
        axes.imshow(picture, "PuOr_r", vmin=-largest, vmax=largest, interpolation="nearest")
    elif picture.ndim == 2:
        axes.imshow(picture, "gray", vmin=low, vmax=high, interpolation="nearest")
    else:
        scaled = picture / (2 * largest) + 0.5 if row.signed else (picture - low) / ((high - low) or 1.0)
        axes.imshow(np.clip(scaled, 0, 1), interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color("0.7")


def features_figure(clean: Numbers, changed: Numbers, names: Sequence[str], *, title: str = "") -> Figure:
    """Draw two rows of a table as bars.

    The bars are the features that differ, the largest difference first.
    """
    difference = np.abs(changed - clean)
    order = np.argsort(-difference, kind="stable")[: min(BARS, max(1, int((difference > 0).sum())))]
    with own_style():
        from crfl_reports.figures.paper_figure import PaperFigure

        labels = shorten_names([names[feature] for feature in order])
        left = 0.4 + room(labels)
        height = max(0.6, 0.26 * len(order))
        top = 0.15 + 0.3 * bool(title)
        figure = PaperFigure(figsize=(left + 4.0 + 2.2, 0.5 + height + top))
        axes = figure.panel(left, 0.5, 4.0, height)
        places = np.arange(len(order))
        before = axes.barh(places - 0.2, clean[order], 0.38, color=BLUE)
        after = axes.barh(places + 0.2, changed[order], 0.38, color=VERMILLION, hatch="///", edgecolor="white")
        axes.set_yticks(places, labels=labels)
        axes.invert_yaxis()
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_xlabel("value of the feature, scaled")
        figure.beside({"clean": before, "with the trigger": after}, left + 4.1, 0.5 + height)
        figure.heading(title, left)
    return figure
