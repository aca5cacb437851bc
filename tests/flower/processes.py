"""Commands of `crfl` as processes of their own, each with a hard deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LONG = float(os.environ.get("CRFL_FLOWER_PATIENCE", "240"))
"""Seconds after which a test gives up. Machines differ; nothing here waits for it unless something is wrong."""


class Command:
    """A command that runs, with what it says in a file."""

    def __init__(self, log: Path, *words: str) -> None:
        self.log = log
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "crfl_core", *words], stdout=stream, stderr=stream, start_new_session=True
            )

    @property
    def said(self) -> str:
        """All it has said so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def ended(self) -> int:
        """Wait for its end; its status."""
        wait_until(lambda: self.process.poll() is not None, f"the end of {self.log.name}: {self.said}")
        assert self.process.returncode is not None
        return self.process.returncode

    def kill(self) -> None:
        """End it without a word, as a power cut does."""
        self.process.kill()
        self.process.wait()


@contextmanager
def commands(folder: Path) -> Iterator[Callable[..., Command]]:
    """Start any number of commands; all are over when the block is."""
    started: list[Command] = []

    def start(name: str, *words: str) -> Command:
        started.append(Command(folder / f"{name}.log", *words))
        return started[-1]

    try:
        yield start
    finally:
        for command in started:
            if command.process.poll() is None:
                os.killpg(command.process.pid, signal.SIGTERM)
        for command in started:
            try:
                command.process.wait(30)
            except subprocess.TimeoutExpired:
                command.kill()


def wait_until(reached: Callable[[], object], what: str, seconds: float = LONG) -> None:
    """Until something is true; a test that waits in vain says for what."""
    until = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < until, f"waited {seconds:g} s for {what}"
        time.sleep(0.1)
