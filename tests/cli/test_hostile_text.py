"""Texts of a run directory or a config that a terminal would obey reach it escaped."""

from __future__ import annotations

import io
import json
import re
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table
from rich.text import Text

from crfl_core.printable_text import PrintableOutput, printable
from tests.oracle import sealed

Crfl = Callable[..., CompletedProcess[str]]

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil"
COMMANDS = (
    *(("show",), ("show", "--full"), ("show", "--json"), ("verify",), ("certify",), ("certify", "--full")),
    *(("ls",), ("compare",), ("explain",), ("receipt",), ("plot", "--figure", "partition")),
)


def obeyed(text: str) -> set[str]:
    """The characters of a text that a terminal might obey."""
    return {one for one in text if one not in "\n\t" and unicodedata.category(one) in ("Cc", "Cf", "Cs")}


def with_evil_texts(tree: object) -> object:
    """A tree of JSON in which texts that no program reads end with codes."""
    if isinstance(tree, dict):
        said = ("certificate", "label", "name", "measured", "required", "remedy", "clean_world", "rounds", "refused")
        return {
            key: f"{value}{EVIL}" if key in said and isinstance(value, str) else with_evil_texts(value)
            for key, value in tree.items()
        }
    return [with_evil_texts(one) for one in tree] if isinstance(tree, list) else tree


@pytest.fixture
def hostile(finished_run: Path, tmp_path: Path) -> Path:
    """A run whose author wrote codes wherever texts are shown, with digests that fit."""
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    for name in ("audit.json", "metrics.json"):
        (run / name).write_text(json.dumps(with_evil_texts(json.loads((run / name).read_text()))))
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(re.sub("^name = .*$", lambda _: f"name = {json.dumps(EVIL)}", config, flags=re.M))
    sealed(run)
    (run / f"notes{EVIL}.txt").write_text("not of the run")
    return run


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_prints_codes_of_a_run(command: tuple[str, ...], hostile: Path, crfl: Crfl) -> None:
    name, *options = command
    result = crfl(name, hostile, *options)
    assert not obeyed(result.stdout)
    assert not obeyed(result.stderr)
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_prints_codes_of_a_name(command: tuple[str, ...], hostile: Path, crfl: Crfl) -> None:
    name, *options = command
    result = crfl(name, hostile.rename(hostile.with_name(f"run{EVIL}")), *options)
    assert not obeyed(result.stdout)
    assert not obeyed(result.stderr)


def test_what_is_wrong_is_said_without_codes(crfl: Crfl, tmp_path: Path) -> None:
    (tmp_path / "evil.toml").write_text(f"{json.dumps(EVIL)} = 1\nseed = {json.dumps(EVIL)}")
    for command in (("run", "evil.toml"), ("explain", "evil.toml"), ("run", "--set", f"name={EVIL}\x1b")):
        result = crfl(*command)
        assert result.returncode == 2
        assert not obeyed(result.stderr)
        assert "\\u001b]0;owned" in result.stderr


def test_the_shown_texts_are_still_there(hostile: Path, crfl: Crfl) -> None:
    assert "\\u001b" in crfl("show", hostile, "--full").stdout
    assert "\\u001b]0;owned\\u0007" in crfl("verify", hostile).stdout
    shown = json.loads(crfl("show", hostile, "--json").stdout)
    assert shown["curves"][0]["certificate"].endswith(EVIL)


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=60))
def test_nothing_of_any_text_is_obeyed(text: str) -> None:
    assert not obeyed(printable(text))
    printable(text).encode()
    if text.isprintable() and not obeyed(text):
        assert printable(text) == text


@given(st.text(alphabet=st.characters(max_codepoint=0x2100), max_size=40))
def test_a_console_keeps_its_own_colours_only(text: str) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system="standard", width=80)
    console.push_render_hook(PrintableOutput())  # type: ignore[arg-type]  # a hook in all but name
    table = Table()
    table.add_column(Text("name", style="red"))
    table.add_row(Text(text))
    console.print(table)
    console.print(Text(text, style="bold"), soft_wrap=True)
    assert not obeyed(re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue()))
