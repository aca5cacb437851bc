"""What a run shows: its records as plain data for the drawings of `crfl_reports.figures`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

from crfl_core.config.schema import FigureFormat
from crfl_core.reporting.metrics import ClassHistogram

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWING = Lock()
"""Runs that end together wait for the first to draw what all of them show."""


def partition_figure(histogram: ClassHistogram) -> Figure:
    """Who holds how much of what: the size of every client, and its samples of each class as a heat map.

    More than 60 clients are sorted, by size above and by their most frequent class below, and averaged in columns.
    """
    import crfl_reports.figures

    return crfl_reports.figures.partition_figure(histogram.counts, histogram.classes, histogram.clients)


def partition_files(histogram: ClassHistogram, formats: Sequence[FigureFormat]) -> dict[FigureFormat, bytes]:
    """The figure of a partition in some formats. Without formats nothing is drawn and Matplotlib not imported."""
    if not formats:
        return {}
    with DRAWING:
        return dict(drawn(histogram, tuple(formats)))


@lru_cache(maxsize=1)
def drawn(histogram: ClassHistogram, formats: tuple[FigureFormat, ...]) -> dict[FigureFormat, bytes]:
    """As `partition_files`. The next run in this process has often the same partition: of a sweep, say."""
    import crfl_reports.figures

    figure = partition_figure(histogram)
    return {suffix: crfl_reports.figures.image_of(figure, suffix) for suffix in formats}
