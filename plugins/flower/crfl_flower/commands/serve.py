"""`crfl federation serve`: run the server of a real federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import echo, passing
from crfl_core.cli.arguments import JsonOption, QuietOption, SetOption

Config = Annotated[Path, typer.Argument(help="Config with engine = 'flower'.", show_default=False)]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Run directory; default: runs/<name of the config>.", show_default=False),
]


def serve(
    config: Config,
    overrides: SetOption = None,
    out: Out = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Serve a federation: train with the nodes that join, and certify."""
    if not quiet:
        passing("starting")
    from crfl_core.cli.output import progress, redirect_plugin_output
    from crfl_flower.launch import serve as started

    def say(text: str) -> None:
        if not quiet:
            passing("")
            echo(text, err=True)

    try:
        with redirect_plugin_output():
            result = started(config, out, overrides or (), progress(quiet), say)
    except KeyboardInterrupt:
        say("the same command resumes this run")
        raise
    passing("")
    if json:
        echo(result.metrics.model_dump_json(indent=2))
    elif quiet:
        echo(str(result.path))
    else:
        echo(f"accuracy {result.metrics.accuracy:.3f}; what is certified: crfl show {result.path}")
