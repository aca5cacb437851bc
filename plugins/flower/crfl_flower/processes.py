"""The processes of Flower that run beneath ours: started with what they need, and gone when we are."""

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
"""Seconds that a process has to end by itself."""

COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*m")
FLOWER_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Flower tells nobody that it runs, looks for no other version, and installs nothing."""


@contextmanager
def run_process(
    module: str, options: Sequence[str], log: Path, home: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A module of this package as a process in a session of its own, which ends with the block.

    It is told our number and ends by itself if we are killed. What it says goes to `log`, what Flower keeps to `home`.
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
    """End a process and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal_session(process.pid, number)
        try:
            process.wait(SECONDS_TO_END)
            break
        except subprocess.TimeoutExpired:
            continue
    signal_session(process.pid, signal.SIGKILL)


def signal_session(leader: int, number: signal.Signals) -> None:
    """Send a signal to a session that we started, if there is still somebody in it."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return


def wait_for_port(address: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 60.0) -> None:
    """Until somebody listens there. Raises with the last words of a process that ended, or took too long."""
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
    raise RunError(f"nobody listens at {address} after {seconds:g} s: {read_log_tail(log)}")


def read_log_tail(log: Path, lines: int = 4) -> str:
    """What a log says of the last error, or else at its end, on one line."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "it left no log"
    said = [COLOUR_CODES.sub("", line).strip() for line in text.splitlines() if line.strip()]
    wrong = [place for place, line in enumerate(said) if line.startswith("ERROR")]
    told = said[wrong[-1] :][:lines] if wrong else said[-lines:]
    return f"{' / '.join(told)} (all of it in {log})"


def find_free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        number: int = tried.getsockname()[1]
        return number
