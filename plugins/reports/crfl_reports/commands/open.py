"""`crfl open`: the report of a run, in a browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from crfl_core.cli import passing
from crfl_core.cli.arguments import TrustOption
from crfl_reports.commands.report import Place


def open_(run: Place, trust: TrustOption = False) -> None:
    """Open the report of RUN, or of a folder of runs, in a browser. Write it if it is missing, or older than RUN."""
    passing("starting")
    from crfl_core.cli.output import redirect_plugin_output
    from crfl_reports.commands.pages import REPORT, is_current, write_with_progress

    target = run / REPORT
    if not is_current(run):
        with redirect_plugin_output():
            target = write_with_progress(run, trust=trust)
    passing("")
    if has_display() and browse(target):
        typer.echo(f"opened {target}")
    else:
        typer.echo(str(target))


def has_display() -> bool:
    """Return whether a window can be opened here."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def browse(target: Path) -> bool:
    """Open a file in a browser; False if there is none."""
    import webbrowser

    return webbrowser.open(target.resolve().as_uri())
