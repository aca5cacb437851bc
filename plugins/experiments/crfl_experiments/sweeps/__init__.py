"""Sweeps: many runs of one config, what they share, and how they compare.

A config has a `[sweep]` table (`language`), whose keys may follow from each other (`expressions`). It becomes cells
(`cells`), some of which share a training (`shared_training`). They run side by side (`execution`, `pool`, `worker`,
`cell_runner`) and lie in one folder (`folder`) with one table (`table`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crfl_experiments.sweeps.results import CellResult as CellResult
    from crfl_experiments.sweeps.results import SweepResult as SweepResult
    from crfl_experiments.sweeps.sweep_runner import sweep as sweep

HOMES = {"sweep": "sweep_runner", "SweepResult": "results", "CellResult": "results"}
"""Modules that define public names; they are imported when they are first used, because PyTorch comes along."""

__all__ = ["CellResult", "SweepResult", "sweep"]


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
