"""`crfl report`: a run as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import passing
from crfl_core.cli.arguments import TrustOption

Place = Annotated[
    Path,
    typer.Argument(metavar="RUN|FOLDER", help="Run directory, or a folder of several.", show_default=False),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Where to write; default: report.html in RUN.", show_default=False)
]
Explore = Annotated[
    float, typer.Option("--explore", metavar="SECONDS", min=0, help="How long to compute answers for the explorer.")
]
SECONDS = 60.0


def report(run: Place, out: Out = None, explore: Explore = SECONDS, trust: TrustOption = False) -> None:
    """Write a finished RUN, or a folder of runs, as one HTML file that needs no network.

    It has plots, an explorer of other threats, the audit, the config and where it came from, and the test samples.
    """
    passing("starting")
    from crfl_core.cli.output import redirect_plugin_output
    from crfl_reports.commands.pages import write_with_progress

    with redirect_plugin_output():
        target = write_with_progress(run, out, explore=explore, trust=trust)
    passing("")
    typer.echo(str(target))
