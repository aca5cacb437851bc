"""Figures of a finished run for trackers that show pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crfl_core.extend import CrflError, RunResult, plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = ("curves", "rounds", "weights", "partition")
"""Figures that need nothing but the run directory."""


def figures_of(result: RunResult) -> dict[str, Figure]:
    """The figures that this run can be shown in."""
    found = {}
    for name in SHOWN:
        try:
            found[name] = plot([result], name)
        except CrflError:  # such as a run that certifies nothing
            continue
    return found
