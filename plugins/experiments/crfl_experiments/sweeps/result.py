"""A sweep that was run, read from its folder."""

from __future__ import annotations

import html
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crfl_core.runs.results import RunResult, load
from crfl_experiments.sweeps.cells import Cell
from crfl_experiments.sweeps.folder import Note, SweepFolder
from crfl_experiments.sweeps.table import Row, columns_of, rows
from crfl_experiments.sweeps.values import shown

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class CellResult:
    """One cell: its settings, how it ended, and the run itself."""

    cell: Cell
    path: Path
    note: Note

    @property
    def settings(self) -> dict[str, Any]:
        """What was varied, and what follows from it."""
        return self.cell.columns

    @cached_property
    def run(self) -> RunResult:
        """The finished run. Raises `StoreError` if it is not finished."""
        return load(self.path)


class SweepResult:
    """A sweep, finished or not. `cells` has all of them in the order of the table."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._folder = SweepFolder.existing(self.path)
        self._cells = self._folder.definition.cells()
        self.cells = tuple(
            CellResult(cell, self._folder.cell(cell.name), self._note(cell.name)) for cell in self._cells
        )

    @property
    def failed(self) -> tuple[CellResult, ...]:
        """The cells that failed; `note.reason` says why."""
        return tuple(one for one in self.cells if one.note.state == "failed")

    @property
    def is_finished(self) -> bool:
        """Whether all cells are."""
        return all(one.note.state == "finished" for one in self.cells)

    @cached_property
    def rows(self) -> list[Row]:
        """All numbers in long form, as in sweep.csv."""
        return rows(self._folder, self._cells)[0]

    @property
    def columns(self) -> list[str]:
        """The names of the columns of the long form."""
        return columns_of(self._cells)

    def to_pandas(self) -> pandas.DataFrame:
        """The long form as a data frame; pandas must be installed."""
        import pandas

        return pandas.DataFrame(self.rows, columns=self.columns)

    def plot(self, against: str | None = None, measure: str | None = None) -> Figure:
        """Certified accuracy against the radius, a line for each point; or a measure along a key that was varied."""
        from crfl_experiments.sweeps.comparing import runs_of_sweep
        from crfl_experiments.sweeps.pictures import picture

        return picture(runs_of_sweep(self), against, measure)

    def _repr_html_(self) -> str:
        keys = list(dict.fromkeys(key for one in self.cells for key in one.settings))
        figures: dict[str, dict[str, float]] = {one.cell.name: {} for one in self.cells}
        for row in self.rows:
            if row["certificate"] is None:
                figures[row["cell"]].setdefault(f"{row['measure']} ({row['test_set']})", row["value"])
        measured = list(dict.fromkeys(name for each in figures.values() for name in each))
        head = "".join(f"<th>{html.escape(name)}</th>" for name in (*keys, "state", *measured))
        lines = []
        for one in self.cells:
            settings = [str(shown(one.settings.get(key, ""))) for key in keys]
            values = [
                f"{figures[one.cell.name][name]:.4g}" if name in figures[one.cell.name] else "" for name in measured
            ]
            told = "".join(f"<td>{html.escape(text)}</td>" for text in (*settings, one.note.state, *values))
            lines.append(f"<tr>{told}</tr>")
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"

    def _note(self, name: str) -> Note:
        if self._folder.is_finished(name):
            note = self._folder.note(name)
            return note if note.state == "finished" else Note("finished")
        return self._folder.note(name)
