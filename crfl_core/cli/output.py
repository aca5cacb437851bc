"""What the commands that run something print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from crfl_core.cli import INTERRUPTED

if TYPE_CHECKING:
    from crfl_core.api import RunResult
    from crfl_core.kinds.tracker import Tracker


def progress(quiet: bool) -> list[Tracker]:
    """The tracker that shows progress, found like any other plugin; none if a person wants quiet or has blocked it."""
    from crfl_core.errors import PluginError
    from crfl_core.plugins import Registry

    if quiet:
        return []
    try:
        tracker = Registry().load("tracker", "progress").model_validate({}).named("progress")
    except PluginError as error:
        sys.stderr.write(f"warning: no progress is shown: {error}\n")
        return []
    return [tracker]  # type: ignore[list-item]  # the registry checked the class


def report(result: RunResult, *, quiet: bool) -> None:
    """The tables of a finished run, or only where it is."""
    if quiet:
        typer.echo(str(result.path))
    else:
        show_tables(result)


def show_tables(result: RunResult) -> None:
    """The tables of a finished run."""
    from rich.console import Console

    from crfl_core.report.files import audit_table
    from crfl_core.report.tables import show

    width = None if sys.stdout.isatty() else 110
    name = result.path.name
    show(Console(highlight=False, width=width), name, result.metrics, audit_table(result.audits), result.path)


def interrupted(path: Path) -> typer.Exit:
    """Say how to go on after Ctrl-C."""
    sys.stderr.write(f"interrupted: go on with `crfl resume {path}`\n")
    return typer.Exit(INTERRUPTED)
