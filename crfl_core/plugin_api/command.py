"""Commands: the words that users type after `crfl`."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from crfl_core.errors import PluginError
from crfl_core.plugin_api import LOCAL

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import click

CORE_COMMANDS = ("run", "show", "certify", "attack", "predict", "plugins", "explain", "schema")
"""Commands of the core, whose names no plugin can take."""

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Command:
    """Target of an entry point of `crfl.commands`, under the name that users type.

    `target` should be a function, whose parameters typer turns into arguments and options and whose docstring is the
    help, or a `typer.Typer`, which is a command with subcommands. `origin` is its distribution, for messages; `point`
    is None for what no distribution declares.
    """

    configured_as: str
    target: object
    origin: str = LOCAL
    point: EntryPoint | None = None

    @property
    def full_name(self) -> str:
        """Return name, distribution and version, as in messages.

        An example is `command 'new' of crfl 0.1.0`.
        """
        return f"command {self.configured_as!r} of {self.origin}"

    @cached_property
    def click_command(self) -> click.Command:
        """Return the command as click runs it.

        Raises `PluginError` if its name or target cannot be used.
        """
        import typer

        name = self.configured_as
        if name in CORE_COMMANDS:
            raise PluginError(f"{self.full_name} has the name of a command of crfl itself: it needs another one")
        if not NAME.fullmatch(name):
            raise PluginError(f"{self.full_name} cannot be typed: use lower-case words with '-' between them")
        app = typer.Typer()
        if isinstance(self.target, typer.Typer):
            app.add_typer(self.target, name=name)
        elif callable(self.target) and not isinstance(self.target, type):
            app.command(name)(self.target)
        else:
            raise PluginError(f"{self.full_name} is {self.target!r}, not a function and not a typer.Typer")
        try:
            return typer.main.get_group(app).commands[name]
        except Exception as error:
            raise PluginError(f"{self.full_name} cannot be read by typer: {type(error).__name__}: {error}") from error

    @property
    def summary(self) -> str:
        """Return the first line of the help."""
        return (self.click_command.help or "").strip().partition("\n")[0]


def summary_in_source(point: EntryPoint) -> str:
    """Return the first line of a command's help from its source.

    It does not import the source. Empty if the help is missing. So a command that is slow to import, or broken, is
    listed like any other: `crfl --help` runs no plugin code.
    """
    try:
        texts = list(help_texts(ast.parse(source_of(point.module)), point.attr))
    except Exception:  # a broken command must not disturb users who do not call it
        return ""
    return texts[-1].strip().partition("\n")[0] if texts else ""


def source_of(module: str) -> str:
    """Return the source of a module without importing it or its packages."""
    first, *others = module.split(".")
    spec = importlib.util.find_spec(first)
    for part in others:
        assert spec is not None
        spec = importlib.machinery.PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    assert spec is not None
    assert isinstance(spec.loader, importlib.abc.InspectLoader)
    return spec.loader.get_source(module) or ""


def help_texts(module: ast.Module, name: str) -> Iterator[str]:
    """Yield the docstrings of functions of this name.

    Calls assigned to the name yield their `help`.
    """
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            yield ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
            keywords = node.value.keywords if isinstance(node.value, ast.Call) else ()
            yield from (ast.literal_eval(keyword.value) for keyword in keywords if keyword.arg == "help")
