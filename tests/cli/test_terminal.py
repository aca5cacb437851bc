"""On a real terminal, a pseudo one: progress on one line, no colours for those who want none, narrow tables."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.conftest import SMALL

CODE = "import sys; from crfl_core.cli import main; main(sys.argv[1:])"


def on_terminal(*arguments: str | Path, columns: int = 80, **environment: str) -> str:
    """What a terminal of some width receives, stdout and stderr together."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, *map(str, arguments)],
        stdin=theirs, stdout=theirs, stderr=theirs, env=clean | {"TERM": "xterm"} | environment,
    )  # fmt: skip
    os.close(theirs)
    received = b""
    while True:
        try:
            block = os.read(ours, 65536)
        except OSError:  # the process has closed its end
            break
        if not block:
            break
        received += block
    os.close(ours)
    assert process.wait() == 0, received.decode()
    return received.decode()


def test_progress_names_every_phase_and_leaves_nothing_behind(tmp_path: Path) -> None:
    changes = (*SMALL, "votes.models=600")
    text = on_terminal("run", "--out", tmp_path / "run", *(word for one in changes for word in ("--set", one)))
    head, found, _ = text.partition("run: 50 clients")
    assert found
    states = [state.strip() for state in re.split("[\r\n]", head) if state.strip()]
    assert states[0] == "starting"
    phases = [state.split()[0] for state in states]
    for phase in ("data", "training", "votes", "certificates", "figures"):
        assert phase in phases
    assert any(re.fullmatch(r"training +#{24}  3/3 .*loss.*", state) for state in states)
    assert head.endswith(" \r")  # the line was wiped before the summary
    assert all(len(state) < 80 for state in states)


@pytest.mark.parametrize("command", ["ls", "compare", "plot", "report", "open"])
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


def test_no_color_is_for_the_help_too() -> None:
    assert "\x1b" in on_terminal("run", "--help")
    assert "\x1b" not in on_terminal("run", "--help", NO_COLOR="1")


@pytest.mark.parametrize("options", [[], ["--full"]])
def test_sixty_columns_break_no_name(finished_run: Path, options: list[str]) -> None:
    text = on_terminal("show", finished_run, *options, columns=60, NO_COLOR="1")
    lines = re.split("[\r\n]+", text)
    assert all(len(line) <= 60 for line in lines if str(finished_run) not in line)
    assert "…" not in text
    assert re.search(r"\bpaper\b", text)
