"""`crfl federation`: prepare a federation, run its server, and join it as a node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import echo
from crfl_core.cli.arguments import ConfigArgument, SetOption
from crfl_flower.commands.join import join
from crfl_flower.commands.serve import serve

federation = typer.Typer(no_args_is_help=True, help="Run a federation whose clients are separate machines.")

Folder = Annotated[Path, typer.Argument(help="A new folder.", show_default=False)]
Address = Annotated[str, typer.Option(help="host:port where nodes will find the server.")]


@federation.callback()
def about() -> None:
    """Train with clients that are separate nodes: prepare, serve, join."""


@federation.command()
def init(
    folder: Folder,
    config: ConfigArgument = None,
    address: Address = "127.0.0.1:9092",
    overrides: SetOption = None,
) -> None:
    """Write keys, certificates, the server's config and one folder per node; CONFIG's clients become the nodes."""
    from crfl_flower.launch import check_flower

    check_flower()
    from crfl_flower.federation_setup import write_federation

    files = write_federation(folder, config, address, overrides or ())
    echo(f"{len(files)} nodes. Start the server, then every node, each where it belongs:")
    echo(f"  crfl federation serve {folder / 'server' / 'config.toml'}")
    for file in files:
        echo(f"  crfl federation join {file}")


federation.command()(serve)
federation.command()(join)
