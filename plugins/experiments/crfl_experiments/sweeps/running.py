"""One cell, from nothing or from where it stands to a finished run directory."""

from __future__ import annotations

import contextlib
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from crfl_engines.stacked import Turns
from pydantic import PrivateAttr

from crfl_core import RunResult, load, run
from crfl_core.extend import Round, RoundRecord, RunContext, RunDirectory, StoreError, Tracker, hookimpl
from crfl_experiments.sweeps.checkpoint_reuse import plant, played
from crfl_experiments.sweeps.reuse import Shared

AnyTracker = TypeVar("AnyTracker", bound=Tracker)
Tell = Callable[[str, int, int], None]
"""Told what happens: "round" with its number and how many there are, "lent" when others may start."""


class Job(NamedTuple):
    """What a worker needs to know about a cell; plain data that goes to another process."""

    name: str
    config: str
    path: Path
    shares: Shared = "nothing"
    source: Path | None = None
    lent: Path | None = None
    twin: Path | None = None


class Stopped(BaseException):
    """A run ends on purpose before a round; its checkpoint is written as after Ctrl-C."""


class StopBefore(Tracker):
    """Ends a run before a round, which leaves a checkpoint of the rounds before."""

    number: int

    @hookimpl
    def crfl_round_started(self, current: Round) -> None:
        """Stop here."""
        if current.number == self.number:
            raise Stopped


class Told(Tracker):
    """Tells how far a run is."""

    _tell: Tell | None = PrivateAttr(default=None)

    @classmethod
    def to(cls, tell: Tell) -> Told:
        """A tracker that tells somebody."""
        tracker = named("told", cls())
        tracker._tell = tell
        return tracker

    @hookimpl
    def crfl_round_finished(self, run: RunContext, record: RoundRecord) -> None:
        """One round more."""
        assert self._tell is not None
        self._tell("round", record.round, run.rounds)


def finish(job: Job, tell: Tell) -> Shared:
    """Run a cell to its end; returns what was taken from another cell. A finished one is left alone."""
    try:
        return finished(job, tell)
    except StoreError as error:  # a sweep has no --force: whoever wants a cell again removes it
        again = f"remove {job.path} and resume the sweep"
        said = str(error).replace("run again with --force", again).replace("start again with --force", again)
        raise StoreError(said) from error


def finished(job: Job, tell: Tell) -> Shared:
    """As `finish`, with what the store itself says of damage."""
    if state_of(job.path) == "finished":
        return "nothing"
    shared = job.shares if job.source is not None and taken(job) else "nothing"
    if job.lent is not None and not job.lent.exists():
        lend(job, tell)
        tell("lent", 0, 0)
    if state_of(job.path) != "finished":
        run(loaded(job), out=job.path, trackers=[Told.to(tell), *turns(job)], twin=twin_of(job))
    return shared


def turns(job: Job) -> Iterator[Turns]:
    """Who lets a cell of a stack wait for its turn."""
    engine = loaded(job)["engine"]
    if engine["type"] == "together":
        yield named("turns", Turns(place=engine.get("place", 0)))


def taken(job: Job) -> bool:
    """Whether the cell now stands where another one has come to; what it has played itself stays."""
    assert job.source is not None
    if state_of(job.path) == "training" and RunDirectory(job.path).read_checkpoint() is not None:
        return False
    try:
        source = played(job.source)
    except StoreError:  # damaged, or gone: then the cell does without it
        return False
    if source is None:
        return False
    until(job, 1)
    return plant(job.path, source)


def lend(job: Job, tell: Tell) -> None:
    """Play all rounds but the last, and keep a copy of the directory as it is then."""
    assert job.lent is not None
    until(job, loaded(job)["rounds"], tell)
    if state_of(job.path) != "training":
        return
    fresh = job.lent.with_name(f".{job.lent.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(job.path, fresh)
    fresh.rename(job.lent)


def until(job: Job, number: int, tell: Tell | None = None) -> None:
    """Play the rounds before a round, from wherever the cell stands."""
    stop = named("stop", StopBefore(number=number))
    told = [] if tell is None else [Told.to(tell)]
    with contextlib.suppress(Stopped):
        run(loaded(job), out=job.path, trackers=[*told, stop], twin=twin_of(job))


def twin_of(job: Job) -> RunResult | None:
    """The cell without the attack, to whose models distances are kept; None: the cell trains them itself."""
    with contextlib.suppress(StoreError):  # damaged, or gone
        return None if job.twin is None else load(job.twin)
    return None


def named(name: str, tracker: AnyTracker) -> AnyTracker:
    """A tracker that no config asks for, with a name for messages."""
    tracker._configured_as = name
    return tracker


def loaded(job: Job) -> dict[str, Any]:
    """The config of a cell."""
    return tomllib.loads(job.config)


def state_of(path: Path) -> str | None:
    """How far a run has come; None if there is none."""
    if not path.exists():
        return None
    try:
        return RunDirectory(path).state
    except StoreError:
        if not any(path.iterdir()):
            return None
        raise
