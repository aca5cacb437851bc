"""Child processes that run Flower: started with the settings they need, ended together with the parent."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from crfl_core.errors import RunError

SECONDS_TO_END = 10.0
"""Seconds that a process has to end after SIGTERM, before SIGKILL."""

COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*m")
FLOWER_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Environment in which Flower sends no telemetry, checks for no update and installs nothing."""


@contextmanager
def run_process(
    module: str, options: Sequence[str], log: Path, home: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module of this package as a process.

    It runs in its own session until the block ends. The process receives this process's id and ends by itself if this
    process is killed. Its output goes to `log`; Flower keeps its files in `home`.
    """
    home.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", module, str(os.getpid()), *options]
    around = os.environ | FLOWER_SETTINGS | {"FLWR_HOME": str(home)} | dict(variables or {})
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, start_new_session=True, env=around
        )
    try:
        yield process
    finally:
        stop_process(process)


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """End a process and everything that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal_session(process.pid, number)
        try:
            process.wait(SECONDS_TO_END)
            break
        except subprocess.TimeoutExpired:
            continue
    signal_session(process.pid, signal.SIGKILL)


def signal_session(leader: int, number: signal.Signals) -> None:
    """Send a signal to every process of a session.

    It does nothing if no process is left.
    """
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return


def wait_for_port(address: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 60.0) -> None:
    """Wait until the process listens at `address`.

    Raises `RunError` with the end of its log if the process ends or takes longer than `seconds`.
    """
    host, _, port = address.rpartition(":")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RunError(f"{Path(sys.argv[0]).name}: Flower ended with {process.returncode}: {read_log_tail(log)}")
        try:
            with socket.create_connection((host or "127.0.0.1", int(port)), timeout=1.0):
                return
        except OSError:
            time.sleep(0.1)
    raise RunError(f"no process listens at {address} after {seconds:g} s: {read_log_tail(log)}")


def read_log_tail(log: Path, lines: int = 4) -> str:
    """Return the last error in a log, or its last lines.

    The text is printable and stands on one line.
    """
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "it left no log"
    said = [COLOUR_CODES.sub("", line).strip() for line in text.splitlines() if line.strip()]
    wrong = [place for place, line in enumerate(said) if line.startswith("ERROR")]
    last = said[wrong[-1] :][:lines] if wrong else said[-lines:]
    printable = "".join(letter if letter.isprintable() else "?" for letter in " / ".join(last))
    return f"{printable} (all of it in {log})"


def check_port(host: str, port: int) -> None:
    """Raise `RunError` if the server cannot listen at a port.

    Another process may listen there, or the host may not be this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host.strip("[]"), port))
        except OSError as error:
            raise RunError(
                f"engine.address: {host}:{port}: {(error.strerror or str(error)).lower()}: stop the other server, or "
                "choose another address"
            ) from error


def find_free_port() -> int:
    """Return a port of this machine that is not in use."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        number: int = tried.getsockname()[1]
        return number
