"""Commands of plugins: found like other plugins, shown without being imported, and alone with their failures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from crfl_core.cli.app import app
from crfl_core.extend import Registry
from crfl_core.plugin_api.command import CORE_COMMANDS
from crfl_core.plugin_loading.registry import PluginListing

Install = Callable[..., None]
Crfl = Callable[..., CompletedProcess[str]]

GREET = '''
from typing import Annotated

import typer

def greet(name: str, times: Annotated[int, typer.Option(min=1)] = 1) -> None:
    """Greet a person.

    As often as you like.
    """
    for _ in range(times):
        typer.echo(f"hello {name}")
'''
TOOLS = '''
import typer

greet = typer.Typer(help="""Greet and leave.""", no_args_is_help=True)

@greet.command()
def well() -> None:
    """Well."""
    typer.echo("well met")

@greet.command()
def badly() -> None:
    """Badly."""
    raise typer.Exit(3)
'''


def listed(name: str) -> list[PluginListing]:
    return [line for line in Registry().listing() if (line.kind, line.name) == ("command", name)]


def test_the_names_that_no_plugin_can_take_are_those_of_the_core() -> None:
    commands = [command.callback.__name__ for command in app.registered_commands if command.callback is not None]
    groups = [group.name for group in app.registered_groups]
    assert sorted(CORE_COMMANDS) == sorted([*commands, *map(str, groups)])
    ours = {"advise", "new", "data", "open", "receipt", "verify"}
    ours |= {"compare", "demo", "ls", "plot", "paper", "sweep"}
    ours |= {"federation"}
    assert set(Registry().names("command")) == ours


def test_a_function_is_a_command(install: Install, crfl: Crfl) -> None:
    install("polite-tools", "1.0", {"crfl.commands": {"greet": "greet"}}, GREET)
    done = crfl("greet", "Ada", "--times", "2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello Ada\nhello Ada\n", "")
    shown = crfl("greet", "--help").stdout
    assert "Usage: crfl greet [OPTIONS] NAME" in shown
    assert "As often as you like." in shown
    for wrong in ([], ["Ada", "--times", "0"], ["Ada", "--often"]):
        done = crfl("greet", *wrong)
        assert done.returncode == 2
        assert "Usage: crfl greet" in done.stderr
    (line,) = listed("greet")
    assert (line.distribution, line.status, line.summary) == ("polite-tools", "ok", "Greet a person.")


def test_a_typer_app_is_a_command_with_subcommands(install: Install, crfl: Crfl) -> None:
    install("polite-tools", "1.0", {"crfl.commands": {"greet": "greet"}}, TOOLS)
    assert crfl("greet", "well").stdout == "well met\n"
    assert crfl("greet", "badly").returncode == 3
    assert "completion" not in crfl("greet", "--help").stdout
    (line,) = listed("greet")
    assert line.summary == "Greet and leave."
    assert "Greet and leave." in crfl("--help").stdout


def test_the_help_runs_no_code_of_plugins(install: Install, crfl: Crfl) -> None:
    source = "raise RuntimeError('slow, broken or worse')\n" + GREET
    install("polite-tools", "1.0", {"crfl.commands": {"greet": "greet"}}, source)
    done = crfl("--help")
    assert done.returncode == 0
    assert "Greet a person." in done.stdout
    assert "polite_tools" not in sys.modules


@pytest.mark.parametrize(
    "source", ["from elsewhere import greet", "def (", "def greet(): pass", "greet = typer.Typer(help=TEXT)"]
)
def test_help_that_does_not_stand_in_the_source_is_said_to_be_elsewhere(
    install: Install, crfl: Crfl, source: str
) -> None:
    install("polite-tools", "1.0", {"crfl.commands": {"greet": "greet"}}, source)
    done = crfl("--help")
    assert done.returncode == 0
    assert "`crfl greet --help` says what it does." in done.stdout


BROKEN = {
    "raises on import": ("import no_such_module", "cannot be imported: ModuleNotFoundError: No module named"),
    "has a syntax error": ("def (", "cannot be imported: SyntaxError"),
    "exits on import": ("raise SystemExit('bye')", "cannot be imported: SystemExit: bye"),
    "lacks the function": ("", "cannot be imported: AttributeError"),
    "is a number": ("greet = 3", "is 3, not a function and not a typer.Typer"),
    "is a class": ("class greet: pass", "not a function and not a typer.Typer"),
    "has a parameter that cannot be typed": (
        "def greet(x: dict[str, set]): pass",
        "cannot be read by typer: RuntimeError: Type not yet supported",
    ),
    "has an annotation that leads nowhere": ("def greet(x: 'Missing'): pass", "cannot be read by typer: NameError"),
}


@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_command_is_listed_and_says_what_is_wrong_when_it_is_called(
    install: Install, crfl: Crfl, source: str, reason: str
) -> None:
    install("broken-tools", "0.3", {"crfl.commands": {"greet": "greet"}}, source)
    assert " greet " in crfl("--help").stdout
    done = crfl("greet", "Ada")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: command 'greet' of broken-tools 0.3 ")
    assert reason in done.stderr
    (line,) = listed("greet")
    assert line.status == "failed"
    assert reason in line.reason
    assert crfl("paper", "--help").returncode == 0


@pytest.mark.parametrize("name", [*CORE_COMMANDS, "Greet", "greet_all", "--greet"])
def test_a_name_that_is_taken_or_cannot_be_typed_is_refused(install: Install, crfl: Crfl, name: str) -> None:
    install("cheeky-tools", "6.6", {"crfl.commands": {name: "greet"}}, GREET)
    (line,) = listed(name)
    assert line.status == "failed"
    assert "needs another one" in line.reason if name in CORE_COMMANDS else "cannot be typed" in line.reason
    if name in CORE_COMMANDS:
        assert "Greet a person." not in crfl("--help").stdout
        assert "Greet a person." not in crfl(name, "--help").stdout
        assert "of crfl itself" in crfl(f"cheeky-tools:{name}").stderr


class TestTwoDistributionsWithOneName:
    @pytest.fixture(autouse=True)
    def _two(self, install: Install) -> None:
        install("polite-tools", "1.0", {"crfl.commands": {"greet": "greet"}}, GREET)
        install("rude-tools", "2.0", {"crfl.commands": {"greet": "greet"}}, GREET.replace("hello", "what,"))

    def test_the_name_is_an_error_that_lists_both(self, crfl: Crfl) -> None:
        done = crfl("greet", "Ada")
        assert done.returncode == 2
        for word in ("polite-tools 1.0", "rude-tools 2.0", "'polite-tools:greet'", "'rude-tools:greet'"):
            assert word in done.stderr
        assert {line.status for line in listed("greet")} == {"conflict"}

    def test_the_help_says_so_and_goes_on(self, crfl: Crfl) -> None:
        done = crfl("--help")
        assert done.returncode == 0
        assert "is declared by" in done.stdout
        assert " paper " in done.stdout

    def test_distribution_and_name_choose_one(self, crfl: Crfl) -> None:
        assert crfl("rude-tools:greet", "Ada").stdout == "what, Ada\n"
        assert crfl("Polite_Tools:greet", "Ada").stdout == "hello Ada\n"


def test_a_misspelt_command_is_met_with_names_of_plugins_too(install: Install, crfl: Crfl) -> None:
    install("polite-tools", "1.0", {"crfl.commands": {"greet": "greet"}}, GREET)
    done = crfl("great")
    assert done.returncode == 2
    assert "No such command 'great': did you mean 'greet'?" in " ".join(done.stderr.split())
    assert "did you mean 'show'?" in crfl("shwo").stderr


def test_broken_metadata_do_not_take_the_help_down(install: Install, crfl: Crfl, tmp_path: Path) -> None:
    install("garbled-tools", "7", {"crfl.commands": {"greet": "greet"}}, GREET)
    points = next(tmp_path.glob("site-packages/garbled_tools-7.dist-info")) / "entry_points.txt"
    points.write_text("[crfl.commands]\nthis line has no equals sign\n")
    done = crfl("--help")
    assert done.returncode == 0
    assert " paper " in done.stdout


def test_what_a_command_prints_on_import_is_not_part_of_its_output(install: Install, crfl: Crfl) -> None:
    install("chatty-tools", "1.0", {"crfl.commands": {"greet": "greet"}}, "print('loading')\n" + GREET)
    done = crfl("greet", "Ada")
    assert (done.stdout, done.stderr) == ("hello Ada\n", "loading\n")


HINT = "CRFL_DEBUG=1 shows the traceback\n"
ENDINGS = {
    "an error of ours is a sentence": (
        "from crfl_core import CrflError\n    raise CrflError('the run is too old')",
        (2, "error: the run is too old\n"),
    ),
    "typer's own ways to end are kept": ("raise typer.Exit(5)", (5, "")),
    "so is an exit of Python": ("import sys; sys.exit(7)", (7, "")),
    "anything else is the failure of the plugin": (
        "return {}['lost']",
        (2, "error: command 'greet' of polite-tools 1.0 failed: KeyError: 'lost' (polite_tools.py:5)\n" + HINT),
    ),
    "a run-time error too": (
        "raise RuntimeError('out of order')",
        (
            2,
            "error: command 'greet' of polite-tools 1.0 failed: RuntimeError: out of order (polite_tools.py:5)\n"
            + HINT,
        ),
    ),
}


@pytest.mark.parametrize(("body", "expected"), ENDINGS.values(), ids=ENDINGS)
def test_how_a_command_ends(install: Install, crfl: Crfl, body: str, expected: tuple[int, str]) -> None:
    source = f"import typer\n\ndef greet():\n    '''Greet.'''\n    {body}\n"
    install("polite-tools", "1.0", {"crfl.commands": {"greet": "greet"}}, source)
    done = crfl("greet")
    assert (done.returncode, re.sub(r"\([^ ()]*/", "(", done.stderr)) == expected


def test_debugging_shows_where_a_command_failed(install: Install, crfl: Crfl, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def greet():\n    '''Greet.'''\n    return {}['lost']\n"
    install("polite-tools", "1.0", {"crfl.commands": {"greet": "greet"}}, source)
    monkeypatch.setenv("CRFL_DEBUG", "1")
    with pytest.raises(Exception, match="command 'greet' of polite-tools") as stop:
        crfl("greet")
    assert isinstance(stop.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("line", "expected"),
    [("crfl gre", "greet"), ("crfl greet --ti", "--times"), ("crfl broken --ti", ""), ("crfl pa", "paper")],
)
def test_shells_complete_commands_of_plugins(install: Install, tmp_path: Path, line: str, expected: str) -> None:
    install("polite-tools", "1.0", {"crfl.commands": {"greet": "greet"}}, GREET)
    install("broken-tools", "1.0", {"crfl.commands": {"broken": "broken"}}, "raise RuntimeError")
    environment = {
        "_CRFL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
        "PYTHONPATH": str(tmp_path / "site-packages"),
    }
    code = "from crfl_core.cli import main; main([])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | environment
    )
    assert (done.stdout.strip(), done.stderr) == (expected, "")
