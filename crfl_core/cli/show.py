"""`crfl show`: the figures of a finished run."""

from __future__ import annotations

from typing import Annotated

import typer

from crfl_core.cli import arguments, output


def show(run: arguments.Run, json: Annotated[bool, typer.Option("--json", help="Print metrics.json.")] = False) -> None:
    """Show accuracy, backdoor success, certified accuracy and the audit of a finished run."""
    from crfl_core.api import load

    result = load(run)
    if json:
        typer.echo(result.metrics.model_dump_json(indent=2))
    else:
        output.show_tables(result)
