"""Partition of the data as a figure: the classes of every client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfl_reports.figures.style import BLUE, own_style, room, shorten_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

COLOURS = "Blues"  # light to dark in print and for every eye
LIGHTEST = 0.15
"""Lightest colour, so that a single sample differs from none, which is white."""
EACH_CLIENT = 60
"""Up to this many clients have a column and a name each; more are sorted and summarised."""
COLUMNS = 500
NAMED_CLASSES = 64
DIGIT = 0.07
"""Inches of a digit in a cell."""
WRITTEN_CELLS = (25, 12)
"""Up to this many clients and classes, counts are written into the cells."""
SIZES = 1.1
"""Height of the upper panel, in inches."""
LOG_FROM = 30.0
"""Counts are coloured on a logarithmic scale if the largest exceeds the median by this factor."""


def partition_figure(held: ArrayLike, class_names: Sequence[str], client_names: Sequence[str] = ()) -> Figure:
    """Draw each client's size and its samples of each class.

    The samples of each class are a heat map.

    Clients without names are numbered. More than 60 clients are sorted, by size above and by their most frequent class
    below, and averaged in columns.
    """
    counts = np.asarray(held, np.int64)
    classes, clients = counts.shape
    each = clients <= EACH_CLIENT
    with own_style():
        panels = make_panels(counts, class_names, client_names)
        where = "one client" if clients == 1 else f"{clients:,} clients"
        panels.sizes.set_title(f"{counts.sum():,} training samples of {classes} classes at {where}", loc="left", pad=10)
        if each:
            draw_each(panels, counts, client_names)
        else:
            draw_summary(panels, counts)
        panels.sizes.set_ylabel("samples")
        panels.sizes.set_ylim(bottom=0)
        panels.sizes.yaxis.set_major_formatter("{x:,.0f}")
        every = -(-classes // NAMED_CLASSES)
        panels.heat.set_yticks(range(0, classes, every), labels=shorten_names(class_names[::every]))
        panels.heat.tick_params(axis="y", length=0)
        panels.heat.set_ylabel("class")
    return panels.figure


class Places(NamedTuple):
    """Parts of the figure: sizes above, the heat map below, the legend of its colours beside it."""

    figure: Figure
    sizes: Axes
    heat: Axes
    colours: Axes


def make_panels(counts: NDArray[np.int64], class_names: Sequence[str], client_names: Sequence[str]) -> Places:
    """Make empty panels with room for all names that are shown."""
    from crfl_reports.figures.paper_figure import PaperFigure

    classes, clients = counts.shape
    each = clients <= EACH_CLIENT
    column = max(0.24, 0.04 + DIGIT * len(str(counts.max()))) if clients <= WRITTEN_CELLS[0] else 0.24
    width = min(max(5.0, column * clients), 12.0)
    height = min(max(1.6, 1.0 + 0.16 * classes), 9.0)
    left = 0.6 + room([*class_names, f"{counts.sum(axis=0).max():,}"])
    bottom = 0.5 + (room(client_names) if each else 0.15)
    gap = 0.15 if each else 0.7
    figure = PaperFigure(figsize=(left + width + 1.1, bottom + height + gap + SIZES + 0.5))
    return Places(
        figure,
        figure.panel(left, bottom + height + gap, width, SIZES),
        figure.panel(left, bottom, width, height),
        figure.panel(left + width + 0.15, bottom, 0.15, height),
    )


def draw_each(panels: Places, counts: NDArray[np.int64], names: Sequence[str]) -> None:
    """Draw one column per client, with its name or number."""
    classes, clients = counts.shape
    panels.sizes.bar(range(clients), counts.sum(axis=0), width=0.8, color=BLUE)
    panels.sizes.set_xlim(-0.5, clients - 0.5)
    panels.sizes.set_xticks([])
    draw_heat(panels, counts, "samples of the class", (-0.5, clients - 0.5))
    if clients <= WRITTEN_CELLS[0] and classes <= WRITTEN_CELLS[1]:
        write_counts(panels.heat, counts)
    labels = shorten_names(names) if names else [str(client) for client in range(clients)]
    panels.heat.set_xticks(range(clients), labels=labels, rotation=90 if names else 0)
    panels.heat.set_xlabel("client")


def draw_summary(panels: Places, counts: NDArray[np.int64]) -> None:
    """Draw sorted sizes, and columns of similar clients."""
    clients = counts.shape[1]
    panels.sizes.stairs(np.sort(counts.sum(axis=0))[::-1], np.arange(clients + 1), fill=True, color=BLUE)
    panels.sizes.set_xlim(0, clients)
    panels.sizes.set_xlabel("clients, the largest first")
    panels.sizes.xaxis.set_major_formatter("{x:,.0f}")
    means, starts = neighbours(counts, COLUMNS)
    label = "samples of the class" if len(starts) == clients else "samples of the class, mean of neighbours"
    draw_heat(panels, means, label, (0, clients))
    panels.heat.set_xlabel("clients, by their most frequent class")
    panels.heat.xaxis.set_major_formatter("{x:,.0f}")


def neighbours(held: ArrayLike, columns: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Average counts (classes, clients) in columns of neighbouring clients.

    The clients are sorted by their most frequent class, then by size. Return the means of the columns, and which of the
    sorted clients is the first of each.
    """
    counts = np.asarray(held, np.int64)
    clients = counts.shape[1]
    by_class = counts[:, np.lexsort((-counts.sum(axis=0), counts.argmax(axis=0)))]
    starts = np.unique(np.linspace(0, clients, min(clients, columns), endpoint=False).astype(np.int64))
    return np.add.reduceat(by_class, starts, axis=1) / np.diff(starts, append=clients), starts


def draw_heat(panels: Places, counts: NDArray[Any], label: str, limits: tuple[float, float]) -> None:
    """Draw counts as colours between two limits of the horizontal axis.

    Counts of 0 are white.
    """
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    image = panels.heat.imshow(
        np.ma.masked_equal(counts, 0),
        ListedColormap(colormaps[COLOURS](np.linspace(LIGHTEST, 1, 256))),
        scale(counts),
        aspect="auto",
        interpolation="nearest",
        extent=(*limits, len(counts) - 0.5, -0.5),
    )
    panels.heat.spines[:].set_visible(True)
    panels.figure.colorbar(image, cax=panels.colours, label=label, format="{x:,g}")


def scale(counts: NDArray[Any]) -> Normalize:
    """Return the colour scale of counts.

    The scale is logarithmic if a few counts are far above the others.
    """
    from matplotlib.colors import LogNorm, Normalize

    held = counts[counts > 0]
    kind = LogNorm if held.max() > LOG_FROM * np.median(held) else Normalize
    return kind(vmin=held.min() if kind is LogNorm else 0, vmax=held.max())


def write_counts(heat: Axes, counts: NDArray[np.int64]) -> None:
    """Write the counts into the cells.

    The text is light on dark cells and dark on light ones.
    """
    shade = scale(counts)
    for (label, client), count in np.ndenumerate(counts):
        if count:
            colour = "white" if shade(float(count)) > 0.5 else "black"
            heat.text(client, label, str(count), ha="center", va="center", fontsize=7, color=colour)
