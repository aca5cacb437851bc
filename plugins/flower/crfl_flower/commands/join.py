"""`crfl join`: a node of a real federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli.arguments import QuietOption

File = Annotated[Path, typer.Argument(help="File of the node, as `crfl federation init` writes it.")]


def join(file: File = Path("node.toml"), quiet: QuietOption = False) -> None:
    """Train for a server on the samples that FILE names, which stay here, until it is ended."""
    from crfl_core.cli.output import plugins_at_work
    from crfl_flower.launch import join as started

    def say(text: str) -> None:
        if not quiet:
            typer.echo(text, err=True)

    with plugins_at_work():
        started(file, say)
