"""`crfl plugins`: what is installed, what is wrong with it, and whether a plugin keeps its promises."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from crfl_core.cli import completion, echo, output, passing
from crfl_core.cli.arguments import JsonOption as Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from crfl_core.cli.plugin_description import PluginDescription
    from crfl_core.plugin_api.base import Plugin
    from crfl_core.plugin_api.command import Command
    from crfl_core.plugin_loading.registry import PluginListing, Registry
    from crfl_core.testing import Result

EXIT_BROKEN_PROMISE = 1
OWN_DISTRIBUTION = "crfl"
STYLES = {"passed": "green", "failed": "red", "skipped": "yellow", "expected failure": "yellow"}

plugins = typer.Typer(invoke_without_command=True, help="List installed plugins, describe one, or check one.")

Name = Annotated[
    str,
    typer.Argument(help="Name of an installed plugin.", show_default=False, autocompletion=completion.plugin_names),
]
Kind = Annotated[
    str | None,
    typer.Option(
        "--kind",
        help="Kind, if plugins of several kinds have this name.",
        show_default=False,
        autocompletion=completion.kinds,
    ),
]
OnlyKind = Annotated[
    str | None,
    typer.Option("--kind", help="List plugins of this kind only.", show_default=False, autocompletion=completion.kinds),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="An option of the plugin, e.g. f=2.", show_default=False),
]


@plugins.callback()
def list_(context: typer.Context, kind: OnlyKind = None, json: Json = False) -> None:
    """List every installed plugin: kind, name, distribution, state, and the hooks it implements."""
    if context.invoked_subcommand is not None:
        return
    from crfl_core.plugin_loading.registry import Registry

    check_kind(kind)
    with output.redirect_plugin_output():
        listing = [plugin for plugin in Registry().listing() if kind in (None, plugin.kind)]
    if json:
        import json as codec

        echo(codec.dumps([asdict(plugin) for plugin in listing], indent=2))
        return
    console = output.terminal()
    if console.is_terminal:
        for title, group in groupby(listing, key=lambda plugin: plugin.kind):
            console.print(kind_table(title, list(group)))
    else:
        show_lines(listing)


def kind_table(kind: str, listing: Sequence[PluginListing]) -> RenderableType:
    """Build the table of the plugins of one kind.

    It is as wide as the terminal. Names are never broken. Only what is unusual is added: a distribution other than
    crfl, and a state other than ok.
    """
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    title = Text(kind, style="bold")
    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left", show_header=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it does", overflow="fold")
    for plugin in listing:
        about = Text(plugin.reason or plugin.summary)
        if plugin.distribution != OWN_DISTRIBUTION:
            about = Text(f"{plugin.distribution} {plugin.version}: ".replace(" :", ":"), style="cyan") + about
        if plugin.status != "ok":
            about = Text(f"{plugin.status}: ", style="red") + about
        table.add_row(plugin.name, about)
    return Padding(table, (0, 0, 1, 0))


def show_lines(listing: Sequence[PluginListing]) -> None:
    """Print one line for each plugin, for a pipe.

    A line has kind, name, distribution, state, and what the plugin does.
    """
    rows = [
        (plugin.kind, plugin.name, f"{plugin.distribution} {plugin.version}".strip(), plugin.status)
        for plugin in listing
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, plugin in zip(rows, listing, strict=True):
        hooks = f" [hooks: {', '.join(plugin.hooks)}]" if plugin.hooks else ""
        fields = [field.ljust(width) for field, width in zip(row, widths, strict=True)]
        about = " ".join((plugin.reason or plugin.summary).split())
        echo("  ".join([*fields, about + hooks]))


@plugins.command()
def show(name: Name, kind: Kind = None, json: Json = False) -> None:
    """Describe a plugin: options, contract, an example."""
    from crfl_core.cli.plugin_description import describe_plugin
    from crfl_core.errors import PluginError
    from crfl_core.plugin_loading.registry import Registry

    with output.redirect_plugin_output():
        registry = Registry()
        chosen = find_kind(registry, kind, name, without_commands=True)
        if chosen == "command":
            bare = name.rpartition(":")[2]
            raise PluginError(f"{name!r} is a command: `crfl {bare} --help` says what it does")
        plugin = registry.load(chosen, name)
        description = describe_plugin(registry.find(chosen, name), plugin)
    if json:
        import json as codec

        echo(codec.dumps(asdict(description), indent=2))
    else:
        show_description(description)


def show_description(plugin: PluginDescription) -> None:
    """Print a plugin's description, options, facts and an example of a config."""
    from rich import box
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = output.terminal()
    console.print(Text(f"{plugin.kind} {plugin.name}, of {plugin.distribution} {plugin.version}", style="bold"))
    paragraphs = re.sub(r"(?<!\n)\n(?![\n -])", " ", plugin.about)
    console.print(Padding(Text(paragraphs), (1, 0, 1, 2)))
    if plugin.options:
        table = Table(box=box.SIMPLE)
        for column in ("option", "type", "default"):
            table.add_column(column, no_wrap=column == "option", overflow="fold")
        table.add_column("meaning", overflow="fold")
        for option in plugin.options:
            table.add_row(*map(Text, (option.name, option.type, option.default, option.meaning)))
        console.print(table)
    for title, text in plugin.facts.items():
        console.print(Text(f"{title}: ", style="bold") + Text(text), soft_wrap=True)
    console.print(Text("\nin a config:\n", style="bold"))
    console.print(Text(f"  {plugin.example}"), soft_wrap=True)


@plugins.command()
def check(
    name: Name,
    kind: Kind = None,
    options: Set = None,
    json: Json = False,
) -> None:
    """Run the conformance kit on a plugin.

    Exit 1 if it breaks a promise, or if no check of its kind could be made.
    """
    passing("starting")
    from crfl_core.plugin_loading.registry import Registry
    from crfl_core.testing.checking import each_result

    results = []
    with output.redirect_plugin_output():
        plugin = build_plugin(Registry(), kind, name, options or [])
        for result in each_result(plugin):
            results.append(result)
            passing(f"{len(results)} checks, the last one: {result.check}")
    unchecked = find_unchecked(plugin, results)
    passing("")
    if json:
        import json as codec

        echo(codec.dumps([asdict(result) for result in results], indent=2))
    else:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE)
        for column in ("check", "result"):
            table.add_column(column, no_wrap=True)
        table.add_column("what it promises, or what to fix", overflow="fold")
        for result in results:
            status = Text(result.status, style=STYLES[result.status])
            table.add_row(result.check, status, Text(result.message or result.promise))
        console = output.terminal()
        console.print(table)
        counts = Counter(result.status for result in results)
        console.print(", ".join(f"{count} {status}" for status, count in counts.items()))
        if unchecked:
            console.print(f"no check of its kind could be made: {unchecked}", markup=False, soft_wrap=True)
    if unchecked or any(result.status == "failed" for result in results):
        raise typer.Exit(EXIT_BROKEN_PROMISE)


def find_unchecked(plugin: Plugin | Command, results: Sequence[Result]) -> str:
    """Return why all checks of a plugin's kind were skipped.

    The text is empty if one was made.
    """
    from crfl_core.plugin_api.base import Plugin
    from crfl_core.testing import promises_of

    own = {promise.name for promise in promises_of(type(plugin)) if promise.base is not Plugin}
    found = [result for result in results if result.check in own]
    if not found or any(result.status != "skipped" for result in found):
        return ""
    return found[0].message


def build_plugin(registry: Registry, kind: str | None, name: str, options: Sequence[str]) -> Plugin | Command:
    """Build the installed plugin of this name, with these options."""
    from pydantic import ValidationError

    from crfl_core.config.error_messages import config_error
    from crfl_core.config.merging import Origins, apply_override
    from crfl_core.errors import ConfigError, PluginError

    kind = find_kind(registry, kind, name)
    if kind == "command":
        if options:
            raise PluginError(f"--set {options[0]}: command {name!r} has no options of a config")
        return registry.command(name)
    plugin = registry.load(kind, name)
    origin = registry.origin(kind, name)
    values: dict[str, object] = {}
    for option in options:
        values = apply_override(values, option, {}, {})
    try:
        return plugin.model_validate(values, context={"resolver": registry}).with_name(name, origin)
    except ValidationError as error:
        problems = str(config_error(error, values, Origins())).splitlines()
        sentences = [f"{kind} {name!r} of {origin}: {problem} (options are given with --set)" for problem in problems]
        raise ConfigError("\n".join(sentences)) from error


def find_kind(registry: Registry, kind: str | None, name: str, *, without_commands: bool = False) -> str:
    """Return the given kind, or else the plugin's only kind.

    Raises `PluginError` if no kind, or if more than one, has a plugin of this name. Without commands, a command counts
    only if no other kind has the name.
    """
    from crfl_core.errors import PluginError, suggest_names
    from crfl_core.plugin_api import KINDS

    check_kind(kind)
    if kind is not None:
        return kind
    bare = name.rpartition(":")[2]
    kinds = [kind for kind in KINDS if bare in registry.found[kind]]
    if not kinds:
        known = sorted({known for kind in KINDS for known in registry.names(kind)})
        raise PluginError(f"there is no plugin {name!r}: {suggest_names(bare, known) or '`crfl plugins` lists them'}")
    if without_commands:
        kinds = [kind for kind in kinds if kind != "command"] or kinds
    if len(kinds) > 1:
        raise PluginError(f"{name!r} is the name of several plugins: choose with --kind {' or --kind '.join(kinds)}")
    return kinds[0]


def check_kind(kind: str | None) -> None:
    """Refuse a word that is not a kind of plugins."""
    from crfl_core.errors import PluginError
    from crfl_core.plugin_api import KINDS

    if kind is not None and kind not in KINDS:
        raise PluginError(f"--kind {kind}: kinds are {', '.join(KINDS)}")
