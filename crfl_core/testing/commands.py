"""Checks of commands: help without delay, and errors that are sentences. No command is run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import EntryPoint
from io import StringIO

import click

from crfl_core.errors import PluginError
from crfl_core.plugin_api import KINDS
from crfl_core.plugin_api.command import Command, summary_in_source
from crfl_core.testing.suite import Case, CheckFailed, Skipped, check_for

HEAVY = ("torch", "sklearn", "matplotlib")
PROBE = "import sys, {module}; print(*sorted(set({heavy!r}) & set(sys.modules)))"
UNKNOWN = "--no-such-option-of-any-command"
BAD_INPUT = 2
Numbers = (click.types.IntParamType, click.types.FloatParamType)


@check_for(Command)
def check_loads_command(case: Case[Command]) -> None:
    """It is a function or an app that typer understands, under a name that can be typed and is none of the core's."""
    try:
        case.plugin.click_command  # noqa: B018  # asking for it is the check
    except PluginError as error:
        raise CheckFailed(
            "a command that can be called", str(error), "name a function with typer's annotations, or a typer.Typer"
        ) from error


@check_for(Command)
def check_prints_help(case: Case[Command]) -> None:
    """It has a help text, and so has every subcommand, argument and option."""
    for name, command in commands_of(case):
        if not (command.help or "").strip():
            raise CheckFailed("a help text", f"none for `crfl {name}`", "write a docstring, or help=... of typer.Typer")
        bare = [parameter.name for parameter in command.params if not getattr(parameter, "help", None)]
        if bare:
            raise CheckFailed(
                "a help text for every argument and option",
                f"none for {bare[0]} of `crfl {name}`",
                "annotate it: Annotated[int, typer.Option(help='what it means')]",
            )


@check_for(Command)
def check_help_is_found_without_import(case: Case[Command]) -> None:
    """The first line of its help stands in its source, where `crfl --help` reads it without running code of plugins."""
    load_command(case)
    point = entry_point_of(case.plugin)
    summary = case.plugin.summary
    if case.plugin.point is None and getattr(sys.modules[point.module], "__file__", None) is None:
        raise Skipped("it was not imported from a file")
    if (found := summary_in_source(point)) != summary:
        raise CheckFailed(
            f"{summary!r} in the source of {point.module}",
            repr(found),
            "define the function, or `NAME = typer.Typer(help='...')`, in the module that the entry point names",
        )


@check_for(Command)
def check_importing_is_light(case: Case[Command]) -> None:
    """Importing its module prints nothing and brings along no PyTorch, scikit-learn or matplotlib."""
    module = entry_point_of(case.plugin).module
    probe = PROBE.format(module=module, heavy=HEAVY)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise Skipped(f"{module} cannot be imported in another process: {done.stderr.strip().splitlines()[-1]}")
    *printed, heavy = done.stdout.removesuffix("\n").split("\n")
    if printed:
        raise CheckFailed("nothing on stdout", f"that importing {module} prints {printed[0][:60]!r}", "print nothing")
    if heavy:
        raise CheckFailed(
            "an import of milliseconds, because `crfl NAME --help` waits for it",
            f"that importing {module} imports {', '.join(heavy.split())}",
            "import what is large inside of the function, when it is called",
        )


@check_for(Command)
def check_refuses_bad_arguments(case: Case[Command]) -> None:
    """`--help` answers; options that it does not know and words in place of numbers end in a sentence and status 2."""
    for name, command in commands_of(case):
        status, text = parse_arguments(command, name, ["--help"])
        if status != 0 or not text.strip():
            raise CheckFailed(f"help from `crfl {name} --help`", f"status {status}", "leave --help to typer")
        numbers = [option.opts[0] for option in command.params if isinstance(option.type, Numbers)]
        wrong = [[UNKNOWN], *([option, "word"] for option in numbers if option.startswith("-"))]
        for arguments in wrong:
            status, text = parse_arguments(command, name, arguments)
            if status != BAD_INPUT or not text.strip():
                raise CheckFailed(
                    f"a sentence and status 2 from `crfl {name} {' '.join(arguments)}`",
                    "no complaint" if status is None else f"status {status} and {text!r}",
                    "let typer refuse it, or raise typer.BadParameter with a sentence",
                )


def load_command(case: Case[Command]) -> click.Command:
    """Return the command as click runs it."""
    try:
        return case.plugin.click_command
    except PluginError as error:
        raise Skipped("it cannot be loaded") from error


def commands_of(case: Case[Command]) -> Iterator[tuple[str, click.Command]]:
    """Yield the command and all its subcommands.

    Each comes with the words that call it.
    """
    waiting = [(case.name, load_command(case))]
    while waiting:
        name, command = waiting.pop(0)
        yield name, command
        if isinstance(command, click.Group):
            waiting += [(f"{name} {inner}", subcommand) for inner, subcommand in command.commands.items()]


def parse_arguments(command: click.Command, name: str, arguments: list[str]) -> tuple[int | None, str]:
    """Parse arguments, and return the exit status and the output.

    The exit status is None if the arguments are valid.
    """
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            command.make_context(name, [*arguments])  # which it empties
        except click.exceptions.Exit as stop:
            return stop.exit_code, printed.getvalue()
        except click.ClickException as error:
            return error.exit_code, error.format_message()
    return None, printed.getvalue()


def entry_point_of(command: Command) -> EntryPoint:
    """Return the entry point of a command.

    If it has none, return the one that its author would write.
    """
    if command.point is not None:
        return command.point
    functions = [command.target, *(info.callback for info in getattr(command.target, "registered_commands", ()))]
    for module in dict.fromkeys(getattr(function, "__module__", "") for function in functions):
        for name, value in vars(sys.modules[module]).items() if module in sys.modules else ():
            if value is command.target:
                return EntryPoint(command.configured_as, f"{module}:{name}", KINDS["command"].group)
    raise Skipped("it is not a name in the module that defines it")
