"""`crfl federation`: prepare a federation, run its server, and join it as a node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import echo, passing
from crfl_core.cli.arguments import ConfigArgument, JsonOption, QuietOption, SetOption

federation = typer.Typer(no_args_is_help=True, help="Run a federation whose clients are separate machines.")

Folder = Annotated[Path, typer.Argument(help="A new folder.", show_default=False)]
Address = Annotated[str, typer.Option(help="host:port where nodes will find the server.")]
Config = Annotated[Path, typer.Argument(help="Config with engine = 'flower'.", show_default=False)]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Run directory; default: runs/<name of the config>.", show_default=False),
]
File = Annotated[Path, typer.Argument(help="File of the node, as `crfl federation init` writes it.")]


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


@federation.command()
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


@federation.command()
def join(file: File = Path("node.toml"), quiet: QuietOption = False) -> None:
    """Join as a node; data stay here. Runs until stopped."""
    from crfl_core.cli.output import redirect_plugin_output
    from crfl_flower.launch import join as started

    def say(text: str) -> None:
        if not quiet:
            echo(text, err=True)

    with redirect_plugin_output():
        started(file, say)
