"""Broken commands: each check fails for a command that is broken in this way, and says what to fix."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import typer

from crfl_core.plugin_api.command import Command
from crfl_core.testing import check_plugin
from tests.testing import heavy_command, loud_command
from tests.testing.good_command import plot
from tests.testing.support import assert_fails, checks_of, verdict

Width = Annotated[int, typer.Option(help="Columns.")]


def silent(width: Width = 60) -> None:
    pass


def unexplained(width: int = 60) -> None:
    """Draw with letters."""


def impossible(width: dict[str, set[int]]) -> None:
    """Draw with letters."""


def renamed() -> None:
    """Draw with letters."""


renamed.__doc__ = "Draw with numbers."


accepting = typer.Typer(help="Draw with letters.")


@accepting.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def anything(context: typer.Context) -> None:
    """Take what comes."""


helpless = typer.Typer(help="Draw with letters.", add_help_option=False)


@helpless.command(add_help_option=False)
def draw() -> None:
    """Draw."""


grouped = typer.Typer(help="Draw with letters.")


@grouped.command()
def first() -> None:
    """Draw the first."""


@grouped.command()
def second() -> None:
    pass


BROKEN: dict[str, list[tuple[Any, str]]] = {
    "loads_command": [
        (Command("run", plot), "has the name of a command of crfl itself"),
        (Command("Plot it", plot), "cannot be typed"),
        (Command("three", 3), "not a function"),
        (Command("impossible", impossible), "cannot be read by typer"),
    ],
    "prints_help": [
        (Command("silent", silent), "none for `crfl silent`"),
        (Command("unexplained", unexplained), "none for width of `crfl unexplained`"),
        (Command("grouped", grouped), "none for `crfl grouped second`"),
    ],
    "help_is_found_without_import": [(Command("renamed", renamed), "'Draw with numbers.' in the source")],
    "importing_is_light": [
        (Command("heavy", heavy_command.heavy), "heavy_command imports torch"),
        (Command("loud", loud_command.loud), "prints 'one moment, please'"),
    ],
    "refuses_bad_arguments": [
        (
            Command("accepting", accepting),
            "`crfl accepting anything --no-such-option-of-any-command`; found no complaint",
        ),
        (Command("helpless", helpless), "help from `crfl helpless --help`"),
    ],
}


def test_every_check_of_commands_has_a_command_that_fails_it() -> None:
    assert set(BROKEN) == checks_of(Command)


@pytest.mark.parametrize(
    ("check", "command", "words"), [(check, *case) for check, cases in BROKEN.items() for case in cases]
)
def test_a_broken_command_is_told_what_to_fix(check: str, command: Command, words: str) -> None:
    assert_fails(command, check, words)


@pytest.mark.parametrize("target", [plot, Command("plot", plot)])
def test_a_command_that_keeps_its_promises_passes(target: Any) -> None:
    results = check_plugin(target)
    assert {result.plugin for result in results} == {"plot"}
    assert {result.status for result in results} == {"passed"}


def test_a_command_that_cannot_be_loaded_is_told_so_once() -> None:
    statuses = [result.status for result in check_plugin(Command("three", 3))]
    assert statuses == ["failed", "skipped", "skipped", "skipped", "skipped"]


def test_a_function_inside_of_another_cannot_be_an_entry_point() -> None:
    def inner() -> None:
        """Draw with letters."""

    status, message = verdict(Command("inner", inner), "importing_is_light")
    assert (status, message) == ("skipped", "it is not a name in the module that defines it")
