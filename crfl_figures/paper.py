"""Figures that keep their style wherever they are saved or shown. Importing this module imports Matplotlib."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from crfl_figures.style import image_of, own_style


class PaperFigure(Figure):
    """A figure whose `savefig` embeds fonts whatever the user's settings are, and which notebooks show as it is."""

    def savefig(self, *arguments: Any, **options: Any) -> None:
        """As Matplotlib's, in the style of this package."""
        with own_style():
            super().savefig(*arguments, **options)

    def _repr_png_(self) -> bytes:
        return image_of(self, "png")

    def panel(self, left: float, bottom: float, width: float, height: float) -> Axes:
        """Axes at a place in inches: Matplotlib's own layouts take a second, and move when a name changes."""
        across, up = self.get_size_inches()
        return self.add_axes((left / across, bottom / up, width / across, height / up))
