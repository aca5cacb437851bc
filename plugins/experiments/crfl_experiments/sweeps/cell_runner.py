"""Run one cell, from nothing or from its checkpoint, to a finished run directory."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from crfl_engines.stacked import Turns
from pydantic import PrivateAttr

from crfl_core import RunResult, load, run
from crfl_core.errors import StoreError
from crfl_core.plugin_api.hookspecs import hookimpl
from crfl_core.plugin_api.tracker import RunContext, Tracker
from crfl_core.records.ledger import RoundRecord
from crfl_core.records.round import Round
from crfl_core.runs.run_directory import RunDirectory
from crfl_experiments.sweeps.shared_training import Shared, copy_training

AnyTracker = TypeVar("AnyTracker", bound=Tracker)
OnRound = Callable[[int, int], None]
"""Called after a round with its number and the number of rounds."""


class Job(NamedTuple):
    """A cell as plain data that can be sent to another process.

    `source` is the finished run whose training is copied, `twin` the finished run without the attack.
    """

    name: str
    config: str
    path: Path
    source: Path | None = None
    twin: Path | None = None


class StoppedBeforeTraining(BaseException):
    """Raised to leave a run after its directory was created; a BaseException, so that no handler swallows it."""


class StopBeforeTraining(Tracker):
    """Ends a run before its first round."""

    @hookimpl
    def crfl_round_started(self, current: Round) -> None:
        """Stop before round 1."""
        if current.number == 1:
            raise StoppedBeforeTraining


class RoundReporter(Tracker):
    """Calls `on_round` after every round."""

    _on_round: OnRound | None = PrivateAttr(default=None)

    @classmethod
    def to(cls, on_round: OnRound) -> RoundReporter:
        """Build a tracker that calls this function."""
        tracker = name_tracker("round-reporter", cls())
        tracker._on_round = on_round
        return tracker

    @hookimpl
    def crfl_round_finished(self, run: RunContext, record: RoundRecord) -> None:
        """Report the round."""
        assert self._on_round is not None
        self._on_round(record.round, run.rounds)


def run_cell(job: Job, on_round: OnRound) -> Shared:
    """Run a cell to its end and return what it took from another cell. A finished cell is left alone."""
    try:
        return run_or_resume(job, on_round)
    except StoreError as error:  # a sweep has no --force: to run a cell again, its directory is removed
        again = f"remove {job.path} and resume the sweep"
        said = str(error).replace("run again with --force", again).replace("start again with --force", again)
        raise StoreError(said) from error


def run_or_resume(job: Job, on_round: OnRound) -> Shared:
    """Run a cell as `run_cell` does, with the store's own messages about damage."""
    if run_state(job.path) == "finished":
        return "nothing"
    is_copied = job.source is not None and take_training(job, job.source)
    run(
        read_config(job), out=job.path, trackers=[RoundReporter.to(on_round), *stack_trackers(job)], twin=load_twin(job)
    )
    return "training" if is_copied else "nothing"


def stack_trackers(job: Job) -> Iterator[Turns]:
    """Yield the tracker that lets a cell of a stack wait for its turn."""
    engine = read_config(job)["engine"]
    if engine["type"] == "stacked":
        yield name_tracker("turns", Turns(place=engine.get("place", 0)))


def take_training(job: Job, source: Path) -> bool:
    """Copy the training of a finished run into the cell; False if the cell has begun, or the source does not fit."""
    if run_state(job.path) == "training" and RunDirectory(job.path).read_checkpoint() is not None:
        return False
    try:
        finished = load(source)
        _ = finished.ledger, finished.parameters  # read now: a damaged file shows here
    except StoreError:  # damaged, or gone: the cell trains itself
        return False
    stop = name_tracker("stop", StopBeforeTraining())
    with contextlib.suppress(StoppedBeforeTraining):
        run(read_config(job), out=job.path, trackers=[stop], twin=load_twin(job))
    return copy_training(job.path, finished)


def load_twin(job: Job) -> RunResult | None:
    """Load the cell without the attack, to whose models distances are kept; None if the cell trains its own twin."""
    with contextlib.suppress(StoreError):  # damaged, or gone
        return None if job.twin is None else load(job.twin)
    return None


def name_tracker(name: str, tracker: AnyTracker) -> AnyTracker:
    """Give a tracker that is not in the config a name for messages."""
    tracker._configured_as = name
    return tracker


def read_config(job: Job) -> dict[str, Any]:
    """Parse the config of a cell."""
    return tomllib.loads(job.config)


def run_state(path: Path) -> str | None:
    """Read how far a run has come; None if there is no run."""
    if not path.exists():
        return None
    try:
        return RunDirectory(path).state
    except StoreError:
        if not any(path.iterdir()):
            return None
        raise
