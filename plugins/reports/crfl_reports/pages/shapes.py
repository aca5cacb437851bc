"""Panels and grids of the gallery, as plain data that the page's script draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from crfl_reports.figures import Grid, Heat, Line, Panel, Panels

SHARE = (0.0, 1.0)
"""The range of an axis of shares."""
DIGITS = 6
"""Significant digits of what is drawn and not read off."""


def shape_data(found: Panels | Grid) -> dict[str, Any]:
    """Lines over an axis, or tables of numbers."""
    if isinstance(found, Grid):
        return grid_data(found)
    names = list(dict.fromkeys(line.name for panel in found.panels for line in panel.lines))
    panels = [panel_data(panel, names) for panel in found.panels]
    return {"title": found.title, "marked": found.marked, "panels": panels}


def panel_data(panel: Panel, names: Sequence[str]) -> dict[str, Any]:
    """Lines at the places of them all; where a line has no point, there is nothing. Equal names are equal lines."""
    places = np.unique(np.concatenate([np.asarray(line.x, np.float64) for line in panel.lines]))
    return {
        "x": places.tolist(),
        "xLabel": panel.x_label,
        "yLabel": panel.y_label,
        "share": panel.y_range == SHARE,
        "log": panel.log_y,
        "marked": list(panel.marked),
        "lines": [
            {**line_data(line, places.tolist()), "number": names.index(line.name)}
            for line in panel.lines
            if len(np.asarray(line.x))
        ],
    }


def line_data(line: Line, places: list[float]) -> dict[str, Any]:
    """A line, and its band if it has one."""

    def spread(values: ArrayLike) -> list[float | None]:
        known = dict(zip(np.asarray(line.x, np.float64).tolist(), plain(values), strict=True))
        return [known.get(place) for place in places]

    found: dict[str, Any] = {"name": line.name, "values": spread(line.y)}
    if line.low is not None and line.high is not None:
        found["band"] = [spread(line.low), spread(line.high)]
    return found


def grid_data(grid: Grid) -> dict[str, Any]:
    """All tables of a grid, one of which is shown at a time."""
    return {
        "title": grid.title,
        "rows": list(grid.rows),
        "columns": list(grid.columns),
        "rowLabel": grid.y_label,
        "columnLabel": grid.x_label,
        "empty": grid.empty,
        "measures": [heat_data(table) for table in grid.tables],
    }


def heat_data(table: Heat) -> dict[str, Any]:
    """One table: its numbers row by row, between which the colours lie, and what the numbers are means of."""
    spread = {"low": table.low, "high": table.high, "counts": table.counts}
    return {
        "name": table.title or table.label,
        "unit": table.label,
        "ends": [rounded(end) for end in table.ends],
        "values": [plain(row) for row in table.numbers],
        **{name: [plain(row) for row in np.asarray(of)] for name, of in spread.items() if of is not None},
    }


def plain(values: ArrayLike) -> list[float | None]:
    """Numbers as JSON can hold them; nothing for what is no number."""
    return [rounded(value) if np.isfinite(value) else None for value in np.asarray(values, np.float64).tolist()]


def rounded(value: float) -> float:
    """A number without digits that nobody sees, whole ones without a point."""
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short
