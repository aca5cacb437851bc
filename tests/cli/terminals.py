"""The command line on a terminal of its own, a pseudo one."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNSET = ("COLUMNS", "LINES", "NO_COLOR")
PATIENCE = 120.0
"""Seconds that a command may show nothing of what is waited for."""


@contextmanager
def default_signals() -> Iterator[None]:
    """Let processes that are started here end by signals, also if this one ignores them, as under `nohup`."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Terminal:
    """One command and the terminal in front of it, stdout and stderr together."""

    def __init__(self, *arguments: str | Path, columns: int = 80, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        clean = {name: value for name, value in os.environ.items() if name not in UNSET}
        with default_signals():
            self.process = subprocess.Popen(
                [sys.executable, "-m", "crfl_core", *map(str, arguments)],
                stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                env=clean | {"TERM": "xterm"} | environment,
            )  # fmt: skip
        os.close(theirs)

    def shown(self, until: str | None = None) -> str:
        """Read until this is shown, or until all writers have closed. Raises after some patience."""
        received, deadline = b"", time.monotonic() + PATIENCE
        while until is None or until not in received.decode(errors="replace"):
            if not select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"the terminal never showed {until!r}, but {received.decode(errors='replace')!r}")
            try:
                block = os.read(self._ours, 65_536)
            except OSError:  # the process has closed its end
                block = b""
            if not block:
                break
            received += block
        return received.decode(errors="replace")

    def type(self, text: str) -> None:
        """Answer it."""
        os.write(self._ours, text.encode())

    def close(self) -> None:
        """End what still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
