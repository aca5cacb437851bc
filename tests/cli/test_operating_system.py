"""What the operating system refuses is said in a sentence, with exit status 2, and what is on disk can be resumed."""

from __future__ import annotations

import errno
import io
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import crfl_core
from crfl_core import cli
from crfl_core.errors import StoreError
from crfl_core.runs.run_directory import RunDirectory
from tests.cli.terminals import Terminal, default_signals
from tests.oracle import contents, tiny

Crfl = Callable[..., CompletedProcess[str]]
CONFIG = tiny(rounds=2, votes={"models": 16}, storage={"figures": [], "checkpoint_seconds": 0})

FAULTS = {
    errno.ENOSPC: "No space left on device: free some space",
    errno.EDQUOT: "Disk quota exceeded: free some of your quota",
    errno.EROFS: "Read-only file system: choose a place that can be written to",
    errno.EACCES: "Permission denied: change its permissions, or choose another place",
    errno.EMFILE: "Too many open files: raise the limit of open files (`ulimit -n`)",
    errno.ENAMETOOLONG: "File name too long: choose a shorter name",
    errno.EIO: "Input/output error",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing disturbs."""
    return crfl_core.run(CONFIG, out=tmp_path_factory.mktemp("whole") / "run").path


OPERATIONS = ((os, "fsync"), (os, "replace"), (os, "rename"), (os, "mkdir"), (os, "open"), (io, "open"))


class Fault:
    """Lets one file operation below a path fail: the n-th that writes, of whatever kind."""

    def __init__(self, patch: pytest.MonkeyPatch, below: Path, number: int, code: int) -> None:
        self.below, self.left, self.code, self.happened = str(below), number, code, False
        for owner, name in OPERATIONS:
            patch.setattr(owner, name, self.failing(name, getattr(owner, name)))

    def failing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *arguments: Any, **options: Any) -> Any:
            if self.is_meant(name, target, arguments):
                self.left -= 1
                if self.left == 0:
                    self.happened = True
                    raise OSError(self.code, os.strerror(self.code), None if name == "fsync" else str(target))
            return real(target, *arguments, **options)

        return call

    def is_meant(self, name: str, target: Any, arguments: tuple[Any, ...]) -> bool:
        if name == "fsync":
            target = Path(f"/proc/self/fd/{target}").readlink()
        if name in ("mkdir", "fsync") and Path(target).is_dir():
            return False  # Python takes any refusal for the news that it is there; a folder need not be synchronised
        return self.below in str(target) and (name != "open" or bool(arguments and opens_for_writing(arguments[0])))


def opens_for_writing(mode: str | int) -> bool:
    """Whether a mode of `io.open`, or flags of `os.open`, allow to write."""
    if isinstance(mode, int):
        return bool(mode & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return bool(set(mode) & set("wa+x"))


def refusal(path: Path) -> str:
    """What keeps a run from being finished; empty if nothing does."""
    try:
        crfl_core.run(CONFIG, out=path)
    except StoreError as error:
        return str(error)
    return ""


def test_a_fault_in_any_file_operation_is_a_sentence_and_costs_nothing(whole: Path, tmp_path: Path) -> None:
    """Every operation of a run in turn, with another refusal each time."""
    codes, refused = itertools.cycle(FAULTS), 0
    for number in itertools.count(1):
        path, code = tmp_path / str(number), next(codes)
        with pytest.MonkeyPatch.context() as patch:
            fault = Fault(patch, path, number, code)
            said = refusal(path)
        assert fault.happened == (os.strerror(code) in said)
        if not fault.happened:
            break
        refused += 1
        again = crfl_core.run(CONFIG, out=path)
        assert contents(again.path) == contents(whole)
        assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
        shutil.rmtree(path)
    assert refused > 40


@pytest.mark.parametrize("code", FAULTS)
def test_a_refusal_says_what_helps(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Fault(monkeypatch, tmp_path, 1, code)
    with pytest.raises(StoreError) as caught:
        RunDirectory(tmp_path).write("model.bin", b"content")
    assert str(caught.value) == f"{tmp_path / 'model.bin'}: cannot be written: {FAULTS[code]}"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("certify", "run", "--save", "one"), "run/what-if/one: cannot be written: "),
        (("run", "run"), "run/.lock: cannot be written: "),
        (("run", "--out", "run", "--force"), "run/.lock: cannot be written: "),
    ],
)
def test_commands_on_a_read_only_disk(
    command: tuple[str, ...], says: str, whole: Path, crfl: Crfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / ".lock").unlink(missing_ok=True)
    if command == ("run", "run"):
        stopped = RunDirectory(run)
        stopped.set_state("trained")
    before = contents(run)
    Fault(monkeypatch, Path("run"), 1, errno.EROFS)
    result = crfl(*command)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {says}")
    assert "Read-only file system" in result.stderr
    assert contents(run) == before


def test_a_file_system_without_locks_is_said(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some network file systems are mounted."""
    run = Path(shutil.copytree(whole, tmp_path / "run"))

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(StoreError, match="cannot be locked: No locks available: its file system has no locks"):
        crfl_core.run(CONFIG, out=run, force=True)


@pytest.mark.parametrize("out", ["x" * 300, "/".join(["y" * 200] * 30)])
@pytest.mark.parametrize("command", ["run", "show", "predict", "verify"])
def test_a_path_that_is_too_long_is_a_sentence(command: str, out: str, crfl: Crfl) -> None:
    options = {"run": ("--out", out), "predict": (out, "new.npz")}
    result = crfl(command, *options.get(command, (out,)))
    assert (result.returncode, result.stdout) == (2, "")
    assert "File name too long" in result.stderr
    assert "Traceback" not in result.stderr


def test_whatever_else_the_system_refuses_is_a_sentence(
    crfl: Crfl, monkeypatch: pytest.MonkeyPatch, finished_run: Path
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "somewhere")

    monkeypatch.setattr("crfl_core.runs.results.load", refuse)
    result = crfl("show", finished_run)
    assert (result.returncode, result.stderr) == (2, "error: somewhere: Input/output error\n")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("seed = " + "9" * 5_000, "big.toml"),
        ("x = " + "[" * 5_000, "deep.toml"),
        ("x: " + "[" * 5_000, "deep.yaml"),
        (f'name = "{"n" * 200_000}"', "long.toml"),
        (f"rounds = [{'1, ' * 50_000}1]", "list.toml"),
    ],
)
def test_a_message_never_echoes_more_than_a_line_of_a_value(text: str, name: str, crfl: Crfl, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    for command in (("run", name), ("run", "--set", text.replace(" = ", "=", 1))):
        result = crfl(*command)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr
        assert len(result.stderr) < 5_000


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)])
def test_the_terminal_is_as_it_was_after_a_signal(
    number: signal.Signals,
    status: int,
    terminal: Callable[..., Terminal],
    tmp_path: Path,
) -> None:
    """The progress bar hides the cursor; a user who ends a run wants it back, and to know how to resume."""
    out, many = str(tmp_path / "run"), ("--set", "rounds=100000", "--set", "attack=none")
    window = terminal("run", "--out", out, *many)
    process, ledger = window.process, tmp_path / "run" / "rounds.jsonl"
    while process.poll() is None and (not ledger.exists() or ledger.read_bytes().count(b"\n") < 20):
        time.sleep(0.05)
    process.send_signal(number)
    shown = window.shown()
    assert process.wait() == status
    hidden, visible = shown.rfind("\x1b[?25l"), shown.rfind("\x1b[?25h")
    assert hidden < visible or hidden == -1
    assert f"interrupted: resume with `crfl run {tmp_path / 'run'}`" in " ".join(shown.split())
    assert "Traceback" not in shown


def test_commands_in_a_terminal_hear_signals_that_the_tests_ignore() -> None:
    """As they do under `nohup`: what ignores a signal hands that on to the processes that it starts."""
    code = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        with default_signals():
            heard = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (told, heard) == ("True\n", "False\n")


def test_ctrl_c_before_anything_was_imported_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "crfl_core.cli.app", raising=False)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "handle_signals", interrupt)
    with pytest.raises(SystemExit) as stop:
        cli.main(["show", "nothing"])
    assert stop.value.code == 130
    assert capsys.readouterr().err == "interrupted: nothing was written yet\n"


def test_a_terminal_that_went_away_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sys, "stderr", Gone())
    with pytest.raises(SystemExit) as stop:
        cli.main(["show", "nothing"])
    assert stop.value.code == 2
