"""`crfl open`: the report of a run as one page, in a browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import echo, passing
from crfl_core.cli.arguments import TrustOption

Place = Annotated[
    Path,
    typer.Argument(metavar="RUN|FOLDER", help="Run directory, or a folder of several.", show_default=False),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Write the page to this file; default: report.html in RUN.", show_default=False),
]
Explore = Annotated[
    float | None,
    typer.Option(
        "--explore",
        metavar="SECONDS",
        min=0,
        help="Time to compute answers for the explorer; default: 60.",
        show_default=False,
    ),
]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Write the page and print its path, no more.")]


def open_(
    run: Place, out: Out = None, explore: Explore = None, no_browser: NoBrowser = False, trust: TrustOption = False
) -> None:
    """Write the report of a run as one page and open it in a browser.

    The page needs no network. It has plots, an explorer of other threats, the audit, the config and where it came from,
    and the test samples. It is written if it is missing or older than RUN, and always with --out or --explore.
    """
    passing("starting")
    from crfl_core.cli.output import redirect_plugin_output
    from crfl_reports.commands.pages import REPORT, SECONDS, is_current, write_with_progress

    target = run / REPORT
    if out is not None or explore is not None or not is_current(run):
        seconds = SECONDS if explore is None else explore
        with redirect_plugin_output():
            target = write_with_progress(run, out, explore=seconds, trust=trust)
    passing("")
    if not no_browser and has_display() and browse(target):
        echo(f"opened {target}")
    else:
        echo(str(target))


def has_display() -> bool:
    """Return whether a window can be opened here."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def browse(target: Path) -> bool:
    """Open a file in a browser; False if there is none."""
    import webbrowser

    return webbrowser.open(target.resolve().as_uri())
