"""`crfl plot`: figures of finished runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import echo, passing
from crfl_core.cli.arguments import TrustOption


class Suffix(StrEnum):
    """Formats of figures."""

    PNG = "png"
    SVG = "svg"
    PDF = "pdf"


Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN|SWEEP...",
        help="Run directories, or folders of sweeps; runs that differ in their seeds only become bands.",
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--figure",
        metavar="NAME",
        help="curves, collective, rounds, weights, partition, samples, flips, closeness, backdoor, matrix; default: "
        "all that can be drawn.",
        show_default=False,
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Directory for the files; those of the same name are replaced.")]
Formats = Annotated[
    list[Suffix] | None, typer.Option("--format", help="png, svg or pdf; default: png.", show_default=False)
]


def plot(
    runs: Runs, figure: Names = None, out: Out = Path("figures"), suffix: Formats = None, trust: TrustOption = False
) -> None:
    """Draw figures of finished runs, as png, svg or pdf.

    The figures show certified accuracy, training, weights, triggers, and several runs against each other.
    """
    passing("starting")
    from crfl_core.runs.results import load
    from crfl_reports.commands.drawing import draw_figures, run_places, save

    figures, left_out = draw_figures([load(place, trust=trust) for place in run_places(runs)], figure)
    passing("")
    for path in save(figures, out, [one.value for one in suffix or (Suffix.PNG,)]):
        echo(path)
    if left_out:
        echo(f"not drawn: {', '.join(left_out)}; --figure NAME says why", err=True)
