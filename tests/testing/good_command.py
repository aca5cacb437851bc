"""A command that keeps every promise."""

from __future__ import annotations

from typing import Annotated

import typer

from crfl_core.extend import RunArgument


def plot(run: RunArgument, width: Annotated[int, typer.Option(help="Columns.")] = 60) -> None:
    """Draw a run with letters."""
    typer.echo(f"{run}: {'x' * width}")
