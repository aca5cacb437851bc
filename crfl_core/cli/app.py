"""The commands of `crfl`, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from crfl_core._version import __version__
from crfl_core.cli.certify import certify
from crfl_core.cli.explain import explain
from crfl_core.cli.plugin_commands import AllCommands
from crfl_core.cli.plugins import plugins
from crfl_core.cli.predict import predict
from crfl_core.cli.resume import resume
from crfl_core.cli.run import run
from crfl_core.cli.schema import schema
from crfl_core.cli.show import show

app = typer.Typer(
    name="crfl",
    cls=AllCommands,
    help="Certifiably robust federated learning: train, attack, aggregate and certify.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)


def print_version(value: bool) -> None:
    """Print the version and stop."""
    if value:
        typer.echo(f"crfl {__version__}")
        raise typer.Exit


WELCOME = f"""\
crfl {__version__}: federated learning that proves what attackers cannot change

  crfl demo      a backdoor, a defence and a proof, in a minute
  crfl run       train and certify: embedded digits, or a config file of yours
  crfl advise    three questions, then a config whose certificate answers them

`crfl --help` lists all commands, `crfl COMMAND --help` says what one does.
"""


@app.callback()
def options(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and stop."),
    ] = False,
) -> None:
    """Certifiably robust federated learning: train, attack, aggregate and certify."""
    if context.invoked_subcommand is None:
        typer.echo(WELCOME, nl=False)


for command in (run, resume, show, certify, predict, schema, explain):
    app.command()(command)
app.add_typer(plugins, name="plugins")
