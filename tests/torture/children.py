"""Commands in forked children of a process that has imported everything, watched at every operation on files."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from crfl_core import cli

PATIENCE = 200
"""Seconds after which a command hangs."""

CLEANING = "remove from a folder"
"""What `shutil.rmtree` does, which names files relative to the folder that they are in."""

CRASHED = 99
"""The status of a child whose command ended in an exception."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "fcntl.flock")
"""What Python tells about files before it does it; `fsync`, of which it tells nothing, is told by `Watch`."""


class Watch:
    """Tells every operation of this process on files below a folder before it happens, and acts before one of them."""

    def __init__(self, below: Path, told: int, operation: int, deed: Callable[[Watch], None]) -> None:
        self._below, self._told, self._left, self._deed = f"{below}/", told, operation, deed
        self._unsynced: dict[str, int] = {}
        self._renamed: list[tuple[str, str, bytes | None]] = []
        self._tears = False

    def install(self) -> None:
        """From now on until the process ends."""
        synchronise = os.fsync

        def fsync(file: int) -> None:
            path = opened_as(file)
            self._tell("fsync", path)
            synchronise(file)
            self._unsynced.pop(path, None)
            self._renamed = [entry for entry in self._renamed if os.path.dirname(entry[1]) != path]  # noqa: PTH120

        os.fsync = fsync  # type: ignore[assignment]  # the real one takes whatever has a fileno()
        sys.addaudithook(self._heard)

    def tear(self, chance: Random) -> None:
        """What a power cut does to files that were not synchronised: new ends are missing, or full of zeros.

        Renames in folders that were not synchronised may be undone, the last ones first.
        """
        self._tears = True
        for source, target, before in reversed(self._renamed[chance.randint(0, len(self._renamed)) :]):
            with contextlib.suppress(OSError):
                os.rename(target, source)  # noqa: PTH104
                if before is not None:
                    Path(target).write_bytes(before)
        for path, certain in self._unsynced.items():
            with contextlib.suppress(FileNotFoundError):
                size = os.stat(path).st_size  # noqa: PTH116  # as cheap as can be, in the middle of an operation
                os.truncate(path, chance.randint(min(certain, size), size))
                if chance.random() < 0.3:
                    os.truncate(path, size)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._tears or event not in EVENTS or (event == "open" and not int(arguments[2]) & WRITING):
            return
        if isinstance(arguments[0], int) and event != "fcntl.flock":
            return  # a file that is open already
        path = opened_as(arguments[0]) if event == "fcntl.flock" else os.fsdecode(arguments[0])
        if path.startswith("/") and not path.startswith(self._below):
            return
        self._tell(event.removeprefix("os."), path)
        if event == "open":
            kept = 0 if arguments[2] & os.O_TRUNC or not os.path.exists(path) else os.stat(path).st_size  # noqa: PTH110, PTH116
            self._unsynced.setdefault(path, kept)
        elif event == "os.rename":
            target = Path(os.fspath(arguments[1]))
            self._renamed.append((path, str(target), target.read_bytes() if target.is_file() else None))
            if path in self._unsynced:
                self._unsynced[str(target)] = self._unsynced.pop(path)

    def _tell(self, event: str, path: str) -> None:
        if not path.startswith(self._below):  # relative to a folder that is being deleted, or elsewhere
            if path.startswith("/"):
                return
            event = CLEANING
        os.write(self._told, f"{event} {path.removeprefix(self._below)}\n".encode())
        self._left -= 1
        if self._left == 0:
            self._deed(self)


@dataclass(frozen=True)
class Plan:
    """What happens to a child: something before it begins, or before one of its operations on files."""

    operation: int = 0
    deed: Callable[[Watch], None] = lambda watch: None
    first: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Ended:
    """How a child ended: a status, negative for a signal; what it printed, and what it did to files."""

    status: int
    said: str
    operations: tuple[str, ...]
    seconds: float

    @property
    def complaints(self) -> list[str]:
        """What must never be, however a command ended."""
        if self.status == CRASHED or self.status == -signal.SIGALRM or "Traceback" in self.said:
            return [f"ended with {self.status}: {self.said[-2_000:]}"]
        return []


@dataclass(frozen=True)
class Child:
    """A command at work."""

    process: int
    said: int
    told: int
    began: float

    def wait(self) -> Ended:
        """Until it ends."""
        said, told = read_all(self.said), read_all(self.told)
        status = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        return Ended(status, said, tuple(told.splitlines()), time.monotonic() - self.began)

    def wait_for_stop(self) -> bool:
        """Whether it stopped on its way; if not, it has ended, and can still be waited for."""
        found = os.waitid(os.P_PID, self.process, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return found is not None and found.si_code == os.CLD_STOPPED

    def send(self, number: signal.Signals) -> None:
        """Send a signal, also to a process that has ended."""
        os.kill(self.process, number)


def start(arguments: Sequence[str], below: Path, plan: Plan | None = None, *, terminal: bool = False) -> Child:
    """Begin a command of `crfl` in a child, with a pseudo terminal or with pipes."""
    plan = plan or Plan()
    told, telling = os.pipe()
    said, saying = (-1, -1) if terminal else os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    began = time.monotonic()
    process, master = os.forkpty() if terminal else (os.fork(), said)
    if process == 0:
        if not terminal:
            os.dup2(saying, 1)
            os.dup2(saying, 2)
            os.close(saying)
        os.environ["TERM"] = "xterm"
        signal.alarm(PATIENCE)
        plan.first()
        Watch(below, telling, plan.operation, plan.deed).install()
        os._exit(ended_with(arguments))
    os.close(telling)
    if not terminal:
        os.close(saying)
    return Child(process, master, told, began)


def run(arguments: Sequence[str], below: Path, plan: Plan | None = None) -> Ended:
    """A command from its beginning to its end."""
    return start(arguments, below, plan).wait()


def ended_with(arguments: Sequence[str]) -> int:
    """Call the command line in this process; its status."""
    status = CRASHED
    try:
        cli.main(arguments)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    return status


def read_all(file: int) -> str:
    """Read a pipe or a terminal until all writers have closed it."""
    parts = []
    with contextlib.suppress(OSError):  # a terminal whose other end is closed
        while part := os.read(file, 65_536):
            parts.append(part)
    os.close(file)
    return b"".join(parts).decode(errors="replace")


def opened_as(file: Any) -> str:
    """The path of an open file."""
    number = file if isinstance(file, int) else file.fileno()
    return os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115  # the file may have gone
