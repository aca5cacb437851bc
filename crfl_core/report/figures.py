"""Figures for the run directory. Matplotlib is imported when one is drawn, and never decides on a window."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crfl_core.config.schema import FigureFormat
from crfl_core.report.metrics import ClassHistogram

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

BLUE = "#0072B2"  # of the palette of Okabe and Ito, which colour-blind people can tell apart
COLOURS = "Blues"  # light to dark in print and for every eye
LIGHTEST = 0.15
"""Where the colours begin, so that a single sample differs from none, which is white."""
EACH_CLIENT = 60
"""Up to this many clients have a column and a name each; more are sorted and summarised."""
COLUMNS = 500
NAMED_CLASSES = 64
WRITTEN_CELLS = (25, 12)
"""Up to this many clients and classes, counts are written into the cells."""
LONGEST_NAME = 24
SIZES = 1.1
"""Height of the upper panel, in inches."""
LOG_FROM = 30.0
"""Counts are coloured on a logarithmic scale if the largest exceeds the median by this factor."""

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # names of classes and clients may hold dollar signs
    "svg.hashsalt": "crfl",  # the same file every time
    "svg.fonttype": "none",  # text stays text
}
UNDATED: dict[FigureFormat, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}

DRAWING = threading.RLock()
"""Matplotlib's settings and Python's filters of warnings are the whole process's."""


def partition_figure(histogram: ClassHistogram) -> Figure:
    """Who holds how much of what: the size of every client, and its samples of each class as a heat map.

    More than 60 clients are sorted, by size above and by their most frequent class below, and averaged in columns.
    """
    counts = np.array(histogram.counts)
    classes, clients = counts.shape
    each = clients <= EACH_CLIENT
    with own_style():
        panels = make_panels(counts, histogram, each)
        where = "one client" if clients == 1 else f"{clients:,} clients"
        panels.sizes.set_title(f"{counts.sum():,} training samples of {classes} classes at {where}", loc="left", pad=10)
        if each:
            draw_each(panels, counts, histogram.clients)
        else:
            draw_summary(panels, counts)
        panels.sizes.set_ylabel("samples")
        panels.sizes.set_ylim(bottom=0)
        panels.sizes.yaxis.set_major_formatter("{x:,.0f}")
        every = -(-classes // NAMED_CLASSES)
        panels.heat.set_yticks(range(0, classes, every), labels=shortened(histogram.classes[::every]))
        panels.heat.tick_params(axis="y", length=0)
        panels.heat.set_ylabel("class")
    return panels.figure


class Panels(NamedTuple):
    """The parts of the figure: sizes above, the heat map below, the meaning of its colours beside it."""

    figure: Figure
    sizes: Axes
    heat: Axes
    colours: Axes


def make_panels(counts: NDArray[np.int64], histogram: ClassHistogram, each: bool) -> Panels:
    """Empty panels with room for all names. Placed by hand, in inches: Matplotlib's own layouts take a second."""
    from matplotlib.figure import Figure

    classes, clients = counts.shape
    width = min(max(5.0, 0.24 * clients), 12.0)
    height = min(max(1.6, 1.0 + 0.16 * classes), 9.0)
    left = 0.6 + room([*histogram.classes, f"{counts.sum(axis=0).max():,}"])
    bottom = 0.5 + (room(histogram.clients) if each else 0.15)
    gap = 0.15 if each else 0.7
    total = left + width + 1.1, bottom + height + gap + SIZES + 0.5
    figure = Figure(figsize=total)

    def panel(x: float, y: float, width: float, height: float) -> Axes:
        return figure.add_axes((x / total[0], y / total[1], width / total[0], height / total[1]))

    return Panels(
        figure,
        panel(left, bottom + height + gap, width, SIZES),
        panel(left, bottom, width, height),
        panel(left + width + 0.15, bottom, 0.15, height),
    )


def room(names: Sequence[str]) -> float:
    """Inches for the longest of some names."""
    return 0.08 * max(map(len, shortened(names)), default=2)


def draw_each(panels: Panels, counts: NDArray[np.int64], names: Sequence[str]) -> None:
    """One column per client, with its name or number."""
    classes, clients = counts.shape
    panels.sizes.bar(range(clients), counts.sum(axis=0), width=0.8, color=BLUE)
    panels.sizes.set_xlim(-0.5, clients - 0.5)
    panels.sizes.set_xticks([])
    draw_heat(panels, counts, "samples of the class", (-0.5, clients - 0.5))
    if clients <= WRITTEN_CELLS[0] and classes <= WRITTEN_CELLS[1]:
        write_counts(panels.heat, counts)
    labels = shortened(names) if names else [str(client) for client in range(clients)]
    panels.heat.set_xticks(range(clients), labels=labels, rotation=90 if names else 0)
    panels.heat.set_xlabel("client")


def draw_summary(panels: Panels, counts: NDArray[np.int64]) -> None:
    """Sorted sizes, and columns of similar clients."""
    clients = counts.shape[1]
    panels.sizes.stairs(np.sort(counts.sum(axis=0))[::-1], np.arange(clients + 1), fill=True, color=BLUE)
    panels.sizes.set_xlim(0, clients)
    panels.sizes.set_xlabel("clients, the largest first")
    panels.sizes.xaxis.set_major_formatter("{x:,.0f}")
    by_class = counts[:, np.lexsort((-counts.sum(axis=0), counts.argmax(axis=0)))]
    starts = np.unique(np.linspace(0, clients, min(clients, COLUMNS), endpoint=False).astype(np.int64))
    means = np.add.reduceat(by_class, starts, axis=1) / np.diff(starts, append=clients)
    label = "samples of the class" if len(starts) == clients else "samples of the class, mean of neighbours"
    draw_heat(panels, means, label, (0, clients))
    panels.heat.set_xlabel("clients, by their most frequent class")
    panels.heat.xaxis.set_major_formatter("{x:,.0f}")


def draw_heat(panels: Panels, counts: NDArray[Any], label: str, limits: tuple[float, float]) -> None:
    """Counts as colours between two limits of the horizontal axis; white where there is nothing."""
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
    """Colours of counts, logarithmic if few of them are far above the others."""
    from matplotlib.colors import LogNorm, Normalize

    held = counts[counts > 0]
    kind = LogNorm if held.max() > LOG_FROM * np.median(held) else Normalize
    return kind(vmin=held.min() if kind is LogNorm else 0, vmax=held.max())


def write_counts(heat: Axes, counts: NDArray[np.int64]) -> None:
    """The numbers themselves, light on dark and dark on light."""
    shade = scale(counts)
    for (label, client), count in np.ndenumerate(counts):
        if count:
            colour = "white" if shade(float(count)) > 0.5 else "black"
            heat.text(client, label, str(count), ha="center", va="center", fontsize=7, color=colour)


def shortened(names: Sequence[str]) -> list[str]:
    """Names on one line that leave room for the picture; what tells long ones apart is often their end."""
    half = LONGEST_NAME // 2
    lines = ("".join(sign if sign.isprintable() else " " for sign in name) for name in names)
    return [line if len(line) <= LONGEST_NAME else f"{line[: half - 1]}…{line[-half:]}" for line in lines]


def partition_files(histogram: ClassHistogram, formats: Sequence[FigureFormat]) -> dict[FigureFormat, bytes]:
    """The figure of a partition in some formats. Without formats nothing is drawn and Matplotlib not imported."""
    if not formats:
        return {}
    figure = partition_figure(histogram)
    return {suffix: encoded(figure, suffix) for suffix in formats}


def encoded(figure: Figure, suffix: FigureFormat) -> bytes:
    """A figure as a file, the same bytes every time."""
    buffer = io.BytesIO()
    with own_style():
        figure.savefig(buffer, format=suffix, dpi=120, metadata=UNDATED[suffix])
    return buffer.getvalue()


@contextmanager
def own_style() -> Iterator[None]:
    """Settings that do not depend on the user's matplotlibrc, and do not change it."""
    import matplotlib

    with DRAWING, matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph ")  # names in other scripts: readable in the SVG at least
        matplotlib.rcdefaults()
        with matplotlib.rc_context(STYLE):
            yield
