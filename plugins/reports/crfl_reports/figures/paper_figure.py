"""Figures that keep their style wherever they are saved or shown. Importing this module imports Matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from crfl_reports.figures.style import LONGEST_NAME, image_of, own_style, shorten_names


class PaperFigure(Figure):
    """Figure whose `savefig` embeds fonts whatever the user's settings are, and which notebooks show as it is.

    Places are in inches: Matplotlib's own layouts take a second, and move when a name changes.
    """

    def savefig(self, *arguments: Any, **options: Any) -> None:
        """Save as Matplotlib does, in the style of this package."""
        with own_style():
            super().savefig(*arguments, **options)

    def _repr_png_(self) -> bytes:
        return image_of(self, "png")

    def panel(self, left: float, bottom: float, width: float, height: float) -> Axes:
        """Add axes at a place."""
        axes = self.add_axes((0, 0, 1, 1))
        self.place(axes, left, bottom, width, height)
        return axes

    def place(self, axes: Axes, left: float, bottom: float, width: float, height: float) -> None:
        """Move axes to a place."""
        across, up = self.get_size_inches()
        axes.set_position((left / across, bottom / up, width / across, height / up))

    def heading(self, title: str, left: float) -> None:
        """Write a title above the whole figure, unless it is empty."""
        across, up = self.get_size_inches()
        if title:
            self.text(left / across, 1 - 0.1 / up, title, ha="left", va="top", fontsize=11)

    def beside(self, entries: Mapping[str, Any], left: float, top: float, longest: int = LONGEST_NAME) -> None:
        """Draw a legend that hides no data, from its upper left corner."""
        across, up = self.get_size_inches()
        if entries:
            labels = shorten_names([*entries], longest)
            place = (left / across, top / up)
            self.legend(
                [*entries.values()],
                labels,
                loc="upper left",
                bbox_to_anchor=place,
                borderaxespad=0,
                handlelength=3.2,
            )
