"""Finished runs as people want them in Python: figures, data frames, and a summary in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from crfl_core.runs.results import RunResult

Rows = Literal["curves", "samples", "rounds", "clients"]


class Presented:
    """What a `RunResult` can do besides being read."""

    def plot(self, figure: str = "curves", others: Sequence[RunResult] = ()) -> Figure:
        """One of the figures of docs/figures.md, of this run and others; runs that differ in seeds become bands."""
        from crfl_reports.gallery import plot

        return plot([cast("RunResult", self), *others], figure)

    @property
    def distances(self) -> tuple[float, ...]:
        """The L2 distance to the clean twin after each round, if `storage.keep = "distances"` was set; else nothing."""
        return cast("RunResult", self).ledger.distances

    def to_pandas(self, rows: Rows = "curves") -> DataFrame:
        """A data frame with a row per point of a curve, per guarantee of a sample, per round, or per round and client.

        Needs pandas, an extra: `pip install "crfl[pandas]"`.
        """
        from crfl_core.reporting.frames import frame

        return frame(cast("RunResult", self), rows)

    def _repr_html_(self) -> str:
        from crfl_core.reporting.notebook import summary

        return summary(cast("RunResult", self))
