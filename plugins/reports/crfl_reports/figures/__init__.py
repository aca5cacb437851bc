"""Figures for papers and pages: plain data in, a Matplotlib figure out. Nothing here knows what a run is.

Matplotlib is imported when a figure is drawn, and no window is ever opened.
"""

from crfl_reports.figures.heat_map import Grid, Heat, heat_figure
from crfl_reports.figures.lines import Line, Panel, Panels, lines_figure, panels_figure
from crfl_reports.figures.partition import neighbours, partition_figure
from crfl_reports.figures.pictures import Row, features_figure, pictures_figure
from crfl_reports.figures.style import RADIUS, Format, image_of
from crfl_reports.figures.weights import weights_figure

__all__ = [
    "RADIUS",
    "Format",
    "Grid",
    "Heat",
    "Line",
    "Panel",
    "Panels",
    "Row",
    "features_figure",
    "heat_figure",
    "image_of",
    "lines_figure",
    "neighbours",
    "panels_figure",
    "partition_figure",
    "pictures_figure",
    "weights_figure",
]
