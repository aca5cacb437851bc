"""`crfl compare`: finished runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import echo, passing
from crfl_core.cli.output import terminal

Paths = Annotated[list[Path], typer.Argument(help="Run directories, or the folder of a sweep.", show_default=False)]
Figure = Annotated[
    Path | None,
    typer.Option(help="Where the figure goes: .png, .svg or .pdf; default: into a sweep.", show_default=False),
]
Against = Annotated[
    str | None, typer.Option(help="Draw along this key instead of the radius.", metavar="KEY", show_default=False)
]
MeasureName = Annotated[
    str | None,
    typer.Option("--measure", help="What is drawn: a certificate, or a row of the table.", show_default=False),
]
Full = Annotated[bool, typer.Option("--full", help="Show certified accuracy at more radii.")]
Json = Annotated[bool, typer.Option("--json", help="Print the table as JSON.")]


def compare(
    runs: Paths,
    figure: Figure = None,
    against: Against = None,
    measure: MeasureName = None,
    full: Full = False,
    json: Json = False,
) -> None:
    """Compare runs, or the cells of a sweep, over seeds.

    Shows mean and spread over seeds, and differences within the same seeds. Every point is compared with the first.
    """
    passing("starting")
    from crfl_experiments.commands.comparison_table import comparison_json, comparison_table
    from crfl_experiments.comparison import compare_runs, read_runs
    from crfl_experiments.comparison_figure import save_figure

    found = read_runs(runs)
    comparison = compare_runs(found)
    target = save_figure(found, runs, figure, against, measure)
    passing("")
    if json:
        echo(comparison_json(comparison))
        return
    terminal().print(comparison_table(comparison, full=full))
    if target is not None:
        echo(f"figure: {target}")
