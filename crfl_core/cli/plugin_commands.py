"""The commands of plugins behind those of the core: listed without importing them, imported when they are called."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import click
from typer.core import TyperCommand, TyperGroup

from crfl_core.errors import CrflError, PluginError, PluginFailure, closest
from crfl_core.plugin_api.command import summary_in_source

if TYPE_CHECKING:
    from crfl_core.plugin_loading.registry import Registry

PANEL = "Commands of plugins"
EXPECTED = (CrflError, click.ClickException, click.exceptions.Exit, click.Abort, EOFError, BrokenPipeError)
"""What a command may raise to end: what is wrong in a sentence, an exit status, or that nobody reads or writes."""


class AllCommands(TyperGroup):
    """The commands of the core, and behind them those of plugins."""

    @cached_property
    def registry(self) -> Registry:
        """What is installed; read when a command is asked for that the core does not have."""
        from crfl_core.plugin_loading.registry import Registry

        return Registry()

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Those of the core in their order, then those of plugins by name, without those that are blocked."""
        own = super().list_commands(ctx)
        return [*own, *(name for name in self.registry.names("command") if name not in own)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name; one of a plugin also by `distribution:name`."""
        own = super().get_command(ctx, cmd_name)
        if own is None and cmd_name.rpartition(":")[2] in self.registry.found["command"]:
            return PluginCommand(cmd_name, self.registry)
        return own

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is called; a name that nobody has is an error that offers similar ones."""
        try:
            return super(TyperGroup, self).resolve_command(ctx, args)  # TyperGroup offers those of the core alone
        except click.UsageError as error:
            if offer := closest(args[0], self.list_commands(ctx)):
                error.message = f"{error.message.removesuffix('.')}: {offer}"
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that is called. What goes wrong unexpectedly in one of a plugin is that plugin's failure."""
        try:
            return super().invoke(ctx)
        except EXPECTED:
            raise
        except Exception as error:
            name = ctx.invoked_subcommand
            if name is None or name in self.commands:
                raise
            where = f"command {name!r} of {self.registry.origin('command', name)}"
            what = f"{type(error).__name__}: {error}"
            raise PluginFailure(f"{where} failed: {what}; CRFL_DEBUG=1 shows where") from error


class PluginCommand(TyperCommand):
    """Stands for a command of a plugin until it is called."""

    def __init__(self, name: str, registry: Registry) -> None:
        super().__init__(name, help=summary(name, registry), rich_help_panel=PANEL)
        self.registry = registry

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """That of the command itself, which is imported now. Raises `PluginError` if that cannot be."""
        assert self.name is not None
        try:
            command = self.registry.command(self.name).click_command
        except PluginError:
            if extra.get("resilient_parsing"):  # a shell that completes a line is no place for errors
                return super().make_context(info_name, args, parent, **extra)
            raise
        return command.make_context(info_name, args, parent, **extra)


def summary(name: str, registry: Registry) -> str:
    """What `crfl --help` says about a command of a plugin."""
    try:
        point = registry.find("command", name).source
    except PluginError as error:  # blocked, or declared by several distributions
        return str(error)
    assert not isinstance(point, type)  # classes of this process are no commands
    return summary_in_source(point) or f"`crfl {name} --help` says what it does."
