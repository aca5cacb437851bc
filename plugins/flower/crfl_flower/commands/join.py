"""`crfl federation join`: run a node of a real federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import echo
from crfl_core.cli.arguments import QuietOption

File = Annotated[Path, typer.Argument(help="File of the node, as `crfl federation init` writes it.")]


def join(file: File = Path("node.toml"), quiet: QuietOption = False) -> None:
    """Join as a node; data stay here. Runs until stopped."""
    from crfl_core.cli.output import redirect_plugin_output
    from crfl_flower.launch import join as started

    def say(text: str) -> None:
        if not quiet:
            echo(text, err=True)

    with redirect_plugin_output():
        started(file, say)
