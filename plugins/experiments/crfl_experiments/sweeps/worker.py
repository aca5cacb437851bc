"""`python -m crfl_experiments.sweeps.worker`: a process that runs cells, one after the other, in one thread.

The first line on standard input is the path of a log, where whatever plugins print goes. Every other one is a job, or
a stack of jobs that train together; lines on standard output say how far each is and how it ended. It ends when its
input does, and as after Ctrl-C, with a checkpoint, when it is told to.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from crfl_core.files.atomic_files import open_regular

if TYPE_CHECKING:
    from crfl_experiments.sweeps.cell_runner import Job

MAPPING = "the mapping given to crfl_core: "
SECONDS_BETWEEN_ROUNDS = 0.25
"""Seconds between two lines about rounds."""

Say = Callable[..., Any]
"""Writes a line with the values that it is given."""


def main() -> None:
    """Run jobs until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, end)
    try:
        import torch

        from crfl_core import reading_once

        torch.set_num_threads(1)
        write_to(sys.stdin.readline())
        with reading_once():
            for line in sys.stdin:
                run_jobs(line, lambda **said: answers.write(json.dumps(said) + "\n"))
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)  # the reader is gone, so buffers need no flush


def write_to(line: str) -> None:
    """Append standard output and standard error to a file.

    The line is the path of the file as JSON. An empty line means that the parent process has ended.
    """
    if line:
        with os.fdopen(open_regular(Path(json.loads(line)), os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
            os.dup2(file.fileno(), 2)
            os.dup2(file.fileno(), 1)


def end(_number: int, _frame: object) -> NoReturn:
    """Stop as after Ctrl-C."""
    raise KeyboardInterrupt


def run_jobs(line: str, say: Say) -> None:
    """Run one cell or a stack of cells, and report their end.

    The cells of a stack train together.
    """
    given = json.loads(line)
    jobs = [parse_job(fields) for fields in given["jobs"]]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        if len(jobs) == 1:
            run_one(jobs[0], say)
        else:
            run_stack(jobs, given["most_at_once"], say)


def run_stack(jobs: Sequence[Job], most_at_once: int, say: Say) -> None:
    """Run the cells of a stack side by side.

    Each cell has a thread.
    """
    from crfl_engines.stacked import CURRENT_BARRIER, RoundBarrier, StackInterrupted

    from crfl_experiments.sweeps.cell_runner import read_config

    engines = [read_config(job)["engine"] for job in jobs]
    barrier = RoundBarrier([engine["place"] for engine in engines], engines[0]["models"], most_at_once)
    CURRENT_BARRIER.set(barrier)
    speaking = threading.Lock()

    def aloud(**said: Any) -> None:
        with speaking:
            say(**said)

    def attend(job: Job, place: int) -> None:
        try:
            run_one(job, aloud)
        except (StackInterrupted, KeyboardInterrupt):  # the cell is saved and resumes later
            barrier.end()
        finally:
            barrier.leave(place)

    threads = [
        threading.Thread(target=copy_context().run, args=(attend, job, engine["place"]), name=job.name)
        for job, engine in zip(jobs, engines, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        barrier.end()
        for thread in threads:
            thread.join()
        raise


def run_one(job: Job, say: Say) -> None:
    """Run one cell and report how it ends."""
    from crfl_experiments.sweeps.cell_runner import run_cell

    last_report = 0.0

    def on_round(number: int, total: int) -> None:
        nonlocal last_report
        if number < total and time.monotonic() < last_report + SECONDS_BETWEEN_ROUNDS:
            return
        last_report = time.monotonic()
        try:
            say(cell=job.name, event="round", round=number, rounds=total)
        except OSError:  # the sweep process is gone
            raise KeyboardInterrupt from None

    try:
        shares = run_cell(job, on_round)
    except Exception as error:
        say(cell=job.name, event="failed", reason=failure_reason(error))
    else:
        say(cell=job.name, event="finished", shares=shares)


def parse_job(fields: dict[str, Any]) -> Job:
    """Parse the job that a line describes."""
    from crfl_experiments.sweeps.cell_runner import Job

    paths = {key: None if fields[key] is None else Path(fields[key]) for key in ("path", "source")}
    return Job(**{**fields, **paths})


def failure_reason(error: Exception) -> str:
    """Return why a cell failed, in a sentence.

    The text of an unexpected error starts with its class.
    """
    from crfl_core import CrflError

    # A cell is handed over as a mapping: which one it is says its own name.
    return str(error).removeprefix(MAPPING) if isinstance(error, CrflError) else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
