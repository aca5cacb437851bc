"""Figures for papers and pages: plain data in, a Matplotlib figure out. Nothing here knows what a run is.

Matplotlib is imported when a figure is drawn, and no window is ever opened.
"""

from crfl_figures.lines import Line, Panel, lines_figure, panels_figure
from crfl_figures.partition import partition_figure
from crfl_figures.style import Format, image_of

__all__ = ["Format", "Line", "Panel", "image_of", "lines_figure", "panels_figure", "partition_figure"]
