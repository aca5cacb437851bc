"""The application behind `crfl`: its own commands, and those of plugins.

Commands of plugins are listed without importing them, and imported when they are called. Help is plain text: it answers
without importing what draws tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperCommand, TyperGroup

from crfl_core._version import __version__
from crfl_core.cli import echo
from crfl_core.cli.attack import attack
from crfl_core.cli.certify import certify
from crfl_core.cli.explain import explain
from crfl_core.cli.plugins import plugins
from crfl_core.cli.predict import predict
from crfl_core.cli.run import run
from crfl_core.cli.schema import schema
from crfl_core.cli.show import show
from crfl_core.errors import CrflError, PluginError, PluginFailure, describe_exception, suggest_names
from crfl_core.plugin_api.command import summary_in_source

if TYPE_CHECKING:
    from crfl_core.plugin_loading.registry import Registry

SUMMARY = "Certifiably robust federated learning: train, attack, aggregate and certify."
WELCOME = f"""\
crfl {__version__}: federated learning with provable robustness to malicious clients

  crfl demo      a backdoor, a defence and a proof, in a minute
  crfl run       train and certify: the shipped digits, or your config file
  crfl advise    three questions, then a config whose certificate answers them

`crfl --help` lists all commands, `crfl COMMAND --help` describes one.
"""
TASKS = {
    "Start": ("demo", "advise", "run"),
    "Ask a run": ("show", "certify", "predict"),
    "Compare runs": ("sweep", "compare", "ls", "plot", "open"),
    "Trust a run": ("verify", "receipt", "attack"),
    "Extend": ("new", "plugins", "schema", "explain", "data"),
    "Federate": ("federation",),
    "Reproduce": ("paper",),
}
"""The commands of `crfl --help` by what people want to do. Commands of other packages follow."""
OTHER_COMMANDS = "Other packages"
EXPECTED_ENDS = (CrflError, click.ClickException, click.exceptions.Exit, click.Abort, EOFError, BrokenPipeError)
"""Exceptions by which a command may end: an error with a message, an exit status, or a closed input or output."""


class PlainHelp(click.HelpFormatter):
    """Formatter of help texts without the escapes that typer writes for rich."""

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write a list of names and texts in two columns."""
        super().write_dl([(name, text.replace("\\[", "[")) for name, text in rows], col_max, col_spacing)


class PlainContext(click.Context):
    """Context of a command whose help is plain text."""

    formatter_class = PlainHelp


def use_plain_help(command: click.Command) -> click.Command:
    """Make a command and its subcommands print plain help.

    Usage errors are plain, too. Return the command.
    """
    command.context_class = PlainContext
    if isinstance(command, TyperCommand | TyperGroup):
        command.rich_markup_mode = None
    for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
        use_plain_help(subcommand)
    return command


class CommandGroup(TyperGroup):
    """The commands of the core, followed by those of plugins."""

    @cached_property
    def registry(self) -> Registry:
        """Return the registry of what is installed.

        It is read when a command is called that the core does not have.
        """
        from crfl_core.plugin_loading.registry import Registry

        return Registry()

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands by task, then those of other packages.

        Those of other packages are in order of name. Blocked ones are left out.
        """
        known = dict.fromkeys([*super().list_commands(ctx), *self.registry.names("command")])
        ours = [name for names in TASKS.values() for name in names if name in known]
        return [*ours, *(name for name in known if name not in ours)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by task, then the options.

        Each command is on a line of its own.
        """
        summaries = {name: self.command_summary(ctx, name) for name in self.list_commands(ctx)}
        width = max(map(len, summaries))
        listed = {name for names in TASKS.values() for name in names}
        others = tuple(name for name in summaries if name not in listed)
        for task, names in {**TASKS, OTHER_COMMANDS: others}.items():
            rows = [(name.ljust(width), summaries[name]) for name in names if name in summaries]
            if rows:
                with formatter.section(task):
                    formatter.write_dl(rows)
        super(TyperGroup, self).format_options(ctx, formatter)  # TyperGroup would add the commands again

    def command_summary(self, ctx: click.Context, name: str) -> str:
        """Return the first line of a command's help."""
        command = self.get_command(ctx, name)
        assert command is not None
        return (command.help or "").strip().partition("\n")[0]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write nothing: `format_options` lists the commands."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a command by its name; a plugin's command also by `distribution:name`."""
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name.rpartition(":")[2] in self.registry.found["command"]:
            return PluginCommand(cmd_name, self.registry)
        return None if command is None else use_plain_help(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called.

        The error for an unknown name offers similar names.
        """
        try:
            return super(TyperGroup, self).resolve_command(ctx, args)  # TyperGroup offers those of the core alone
        except click.UsageError as error:
            if offer := suggest_names(args[0], self.list_commands(ctx)):
                # A new error: that of click 8.4 adds suggestions of its own.
                raise click.UsageError(f"{error.message.removesuffix('.')}: {offer}", ctx) from error
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that is called.

        An unexpected error in a plugin's command is a `PluginFailure`.
        """
        try:
            return super().invoke(ctx)
        except EXPECTED_ENDS:
            raise
        except Exception as error:
            name = ctx.invoked_subcommand
            if name is None or name in self.commands:
                raise
            where = f"command {name!r} of {self.registry.origin('command', name)}"
            raise PluginFailure(f"{where} failed: {describe_exception(error)}") from error


class PluginCommand(TyperCommand):
    """Placeholder for a command of a plugin, which is imported when it is called."""

    def __init__(self, name: str, registry: Registry) -> None:
        super().__init__(name, help=plugin_summary(name, registry))
        self.registry = registry

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Import the command and make its context.

        Raises `PluginError` if the import fails.
        """
        assert self.name is not None
        try:
            command = use_plain_help(self.registry.command(self.name).click_command)
        except PluginError:
            if extra.get("resilient_parsing"):  # a shell that completes a line shows no errors
                return super().make_context(info_name, args, parent, **extra)
            raise
        return command.make_context(info_name, args, parent, **extra)


def plugin_summary(name: str, registry: Registry) -> str:
    """Return the line of `crfl --help` about a command of a plugin."""
    try:
        point = registry.find("command", name).source
    except PluginError as error:  # blocked, or declared by several distributions
        return str(error)
    assert not isinstance(point, type)  # classes of this process are not commands
    return summary_in_source(point) or f"`crfl {name} --help` says what it does."


app = typer.Typer(
    name="crfl",
    cls=CommandGroup,
    help=SUMMARY,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def print_version(value: bool) -> None:
    """Print the version and stop."""
    if value:
        echo(f"crfl {__version__}")
        raise typer.Exit


@app.callback()
def main_options(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and stop."),
    ] = False,
) -> None:
    """Certifiably robust federated learning: train, attack, aggregate and certify."""
    if context.invoked_subcommand is None:
        echo(WELCOME, nl=False)


for command in (run, show, certify, attack, predict, schema, explain):
    app.command()(command)
app.add_typer(plugins, name="plugins")
