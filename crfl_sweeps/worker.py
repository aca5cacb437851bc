"""`python -m crfl_sweeps.worker`: a process that runs cells, one after the other, in one thread.

A line on standard input is a job; lines on standard output say how far it is and how it ended. Whatever plugins print
goes to standard error. It ends when its input does, and as after Ctrl-C, with a checkpoint, when it is told to.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from crfl_sweeps.running import Job

MAPPING = "the mapping given to crfl_core: "
PAUSE = 0.25
"""Seconds between two lines about rounds."""


def main() -> None:
    """Take jobs until there are none."""
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, end)
    try:
        import torch

        torch.set_num_threads(1)
        for line in sys.stdin:
            work(line, lambda **said: answers.write(json.dumps(said) + "\n"))
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)  # nobody reads what is left in buffers


def end(_number: int, _frame: object) -> NoReturn:
    """Stop as after Ctrl-C."""
    raise KeyboardInterrupt


def work(line: str, say: Callable[..., Any]) -> None:
    """One job, whatever comes of it."""
    from crfl_sweeps.running import finish

    told = 0.0

    def tell(what: str, number: int, total: int) -> None:
        nonlocal told
        if what == "round" and number < total and time.monotonic() < told + PAUSE:
            return
        told = time.monotonic()
        try:
            say(event=what, round=number, rounds=total)
        except OSError:  # whoever asked is gone
            raise KeyboardInterrupt from None

    job = job_of(line)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            shares = finish(job, tell)
    except Exception as error:
        say(event="failed", reason=reason_of(error))
    else:
        say(event="finished", shares=shares)


def job_of(line: str) -> Job:
    """The job that a line describes."""
    from crfl_sweeps.running import Job

    told: dict[str, Any] = json.loads(line)
    for key in ("path", "source", "lent"):
        told[key] = None if told[key] is None else Path(told[key])
    return Job(**told)


def reason_of(error: Exception) -> str:
    """Why a cell failed, in a sentence; what nobody expected with its kind."""
    from crfl_core import CrflError

    # A cell is handed over as a mapping: which one it is says its own name.
    return str(error).removeprefix(MAPPING) if isinstance(error, CrflError) else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
