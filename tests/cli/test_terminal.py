"""On a real terminal, a pseudo one: progress on one line, no colours for those who want none, narrow tables."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.cli.terminals import Terminal
from tests.conftest import SMALL


def on_terminal(*arguments: str | Path, columns: int = 80, **environment: str) -> str:
    """What a terminal of some width receives from a command that succeeds."""
    window = Terminal(*arguments, columns=columns, **environment)
    try:
        received = window.shown()
        assert window.process.wait() == 0, received
    finally:
        window.close()
    return received


def test_progress_names_every_phase_and_leaves_nothing_behind(tmp_path: Path) -> None:
    changes = (*SMALL, "votes.models=600")
    text = on_terminal("run", "--out", tmp_path / "run", *(word for one in changes for word in ("--set", one)))
    head, found, _ = text.partition("\x1b[1mNot certified: paper is a reproduction")
    assert found
    states = [state.strip() for state in re.split("[\r\n]", head) if state.strip()]
    assert states[0] == "starting"
    phases = [state.split()[0] for state in states]
    for phase in ("data", "training", "votes", "certificates", "figures"):
        assert phase in phases
    assert any(re.fullmatch(r"training +#{12}  3/3  accuracy \d\.\d{3}  loss \d+\.\d{3}", state) for state in states)
    assert head.endswith(" \r")  # the line was wiped before the summary
    assert all(len(state) < 80 for state in states)


@pytest.mark.parametrize(("columns", "wide"), [(60, 0), (80, 12), (120, 24)])
def test_progress_is_whole_however_wide_the_terminal_is(tmp_path: Path, columns: int, wide: int) -> None:
    changes = ("rounds=300", "attack.rounds=[150]", "certificates=[]", "storage.figures=[]")
    options = [word for one in changes for word in ("--set", one)]
    window = Terminal("run", "--out", tmp_path / "run", *options, columns=columns)
    try:
        text = window.shown(until=" left  accuracy 0.")
        text += window.shown(until="\r")
    finally:
        window.close()
    line = next(state for state in text.split("\r") if " left  accuracy" in state)
    picture = rf"[#.]{{{wide}}}  " if wide else ""
    whole = rf"training +{picture}\d+/300  \d:\d\d:\d\d left  accuracy \d\.\d{{3}}(  loss \d+\.\d{{3}})?"
    assert re.fullmatch(whole, line.strip())
    assert ("loss" in line) == (columns > 60)


@pytest.mark.parametrize("command", ["ls", "compare", "plot", "open"])
def test_commands_of_plugins_say_at_once_that_they_start(finished_run: Path, tmp_path: Path, command: str) -> None:
    run = shutil.copytree(finished_run, tmp_path / "run")
    options = ("--out", tmp_path / "figures", "--figure", "rounds") if command == "plot" else ()
    text = on_terminal(command, run, *options, DISPLAY="", WAYLAND_DISPLAY="")
    first, *rest = [state.strip() for state in re.split("[\r\n]", text) if state.strip()]
    assert first == "starting"
    assert "starting" not in rest[-1]


@pytest.mark.parametrize("arguments", [["show"], ["show", "--full"], ["certify"]])
def test_no_color_leaves_no_escape_codes(finished_run: Path, arguments: list[str]) -> None:
    command, *options = arguments
    assert "\x1b" in on_terminal(command, finished_run, *options)
    assert "\x1b" not in on_terminal(command, finished_run, *options, NO_COLOR="1")


def test_the_welcome_breaks_no_line() -> None:
    lines = re.split("[\r\n]+", on_terminal())
    assert any(line.startswith("  crfl demo ") for line in lines)
    assert all(len(line) < 80 for line in lines)


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["sweep", "--help"], ["data", "--help"]])
def test_help_is_plain_and_fits_eighty_columns(arguments: list[str]) -> None:
    text = on_terminal(*arguments)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "..." not in text.replace("A,B,...", "").replace("[ARGS]...", "")
    assert "\\[" not in text


@pytest.mark.parametrize("columns", [60, 80])
def test_the_list_of_datasets_breaks_lines_between_words(columns: int) -> None:
    lines = re.split("[\r\n]+", on_terminal("data", "list", columns=columns))
    assert all(len(line) <= columns or " " not in line.strip() for line in lines)


@pytest.mark.parametrize("options", [[], ["--full"]])
def test_sixty_columns_break_no_name(finished_run: Path, options: list[str]) -> None:
    text = on_terminal("show", finished_run, *options, columns=60, NO_COLOR="1")
    lines = re.split("[\r\n]+", text)
    assert all(len(line) <= 60 for line in lines if str(finished_run) not in line)
    assert "…" not in text
    assert re.search(r"\bpaper\b", text)
