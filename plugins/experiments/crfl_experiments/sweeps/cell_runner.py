"""One cell of a sweep, run from nothing, from its checkpoint, or from the training of another cell.

What is copied from another cell is a checkpoint like any other: the run resumes from it, and the core verifies it.
"""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from crfl_engines.stacked import VoteTurns
from pydantic import PrivateAttr

from crfl_core import RunResult, load, run
from crfl_core.errors import StoreError
from crfl_core.plugin_api.hookspecs import hookimpl
from crfl_core.plugin_api.tracker import Tracker
from crfl_core.records.ledger import Ledger, RoundRecord, RunFacts
from crfl_core.records.run_context import RunContext
from crfl_core.runs.checkpoints import CheckpointWriter, continue_rounds, read_checkpoint
from crfl_core.runs.run_directory import RunDirectory
from crfl_core.runs.stored_votes import has_votes

if TYPE_CHECKING:
    from crfl_core.records.round import Round

AnyTracker = TypeVar("AnyTracker", bound=Tracker)
Shared = Literal["nothing", "training"]
OnRound = Callable[[int, int], None]
"""Called after a round with its number and the number of rounds."""

FACTS_FILE = "ledger.json"
ENVIRONMENT_FILE = "environment.json"
FACTS_THAT_MAY_DIFFER = {"resampled", "test_noise_std", "secret_votes"}
"""Facts of a run that may differ although the rounds are the same."""


class Job(NamedTuple):
    """Cell as plain data that can be sent to another process; `source` is the run whose training it copies."""

    name: str
    config: str
    path: Path
    source: Path | None = None


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
    """Run a cell to its end.

    Return what the cell took from another cell. A finished cell is left alone.
    """
    try:
        return run_or_resume(job, on_round)
    except StoreError as error:  # a sweep has no --force: to run a cell again, its directory is removed
        remedy = f"remove {job.path} and resume the sweep"
        message = str(error).replace("run again with --force", remedy).replace("start again with --force", remedy)
        raise StoreError(message) from error


def run_or_resume(job: Job, on_round: OnRound) -> Shared:
    """Run a cell as `run_cell` does.

    Errors about damage have the store's own messages.
    """
    if run_state(job.path) == "finished":
        return "nothing"
    is_copied = job.source is not None and take_training(job, job.source)
    trackers = [RoundReporter.to(on_round), *stack_trackers(job)]
    run(read_config(job), out=job.path, trackers=trackers, progress=False)
    return "training" if is_copied else "nothing"


def stack_trackers(job: Job) -> Iterator[VoteTurns]:
    """Yield the tracker that makes a cell of a stack wait.

    The cell waits for its turn.
    """
    engine = read_config(job)["engine"]
    if engine["type"] == "stacked":
        yield name_tracker("turns", VoteTurns(place=engine.get("place", 0)))


def name_tracker(name: str, tracker: AnyTracker) -> AnyTracker:
    """Give a tracker a name for messages.

    The config does not name it.
    """
    tracker._configured_as = name
    return tracker


def read_config(job: Job) -> dict[str, Any]:
    """Parse the config of a cell."""
    return tomllib.loads(job.config)


def run_state(path: Path) -> str | None:
    """Read how far a run has come.

    The result is None if the path holds none.
    """
    if not path.exists():
        return None
    try:
        return RunDirectory(path).state
    except StoreError:
        if not any(path.iterdir()):
            return None
        raise


def take_training(job: Job, source: Path) -> bool:
    """Copy the training of a finished run into a cell.

    False if the cell has begun, or if the source is damaged or does not fit: the cell then trains itself.
    """
    if run_state(job.path) == "training" and read_checkpoint(RunDirectory(job.path)) is not None:
        return False
    try:
        finished = load(source, trust=True)
        _ = finished.ledger, finished.parameters  # read now: a damaged file shows here
    except StoreError:
        return False
    stop = name_tracker("stop", StopBeforeTraining())
    with contextlib.suppress(StoppedBeforeTraining):
        run(read_config(job), out=job.path, trackers=[stop], progress=False)
    return copy_training(job.path, finished)


def copy_training(path: Path, source: RunResult) -> bool:
    """Copy all rounds of a finished run into a new run.

    Votes on the same questions are copied as well if they use the same random numbers. Return False if the rounds do
    not fit.
    """
    target = RunDirectory(path)
    with target.lock():
        facts = target.read_facts(FACTS_FILE, RunFacts)
        if not has_same_rounds(facts, source.ledger.facts) or keeps_distances(RunResult(path)) != keeps_distances(
            source
        ):
            return False
        continue_rounds(target)
        checkpoints = CheckpointWriter(target, seconds=0.0)
        for _, records in groupby(source.ledger.rounds, key=lambda record: record.round):
            checkpoints.append_rounds(list(records))
        for number in facts.resampled:
            target.write_resampled(number, source.directory.read_resampled(number))
        copy_votes(target, facts, source)
        target.write_json(ENVIRONMENT_FILE, source.directory.read_json(ENVIRONMENT_FILE))
        checkpoints.write(facts.rounds, {"parameters": source.parameters.numpy()}, [source.ledger.clients])
    return True


def has_same_rounds(facts: RunFacts, source: RunFacts) -> bool:
    """Return whether a run can take its rounds from another.

    Both must play the same rounds, and the source must have kept every model that the run needs.
    """
    is_same = all(value == getattr(facts, name) for name, value in source if name not in FACTS_THAT_MAY_DIFFER)
    return is_same and set(facts.resampled) <= set(source.resampled)


def keeps_distances(run: RunResult) -> bool:
    """Return whether a run keeps its distances to the clean twin.

    The ledger holds them.
    """
    return run.config.storage.keep == "distances"


def copy_votes(target: RunDirectory, facts: RunFacts, source: RunResult) -> None:
    """Copy the votes on those questions that both runs ask."""
    run = RunResult(target.path, trust=True)
    if vote_seed(run) != vote_seed(source) or vote_seed(run) == "secret":
        return
    # The ledger that training will write when it resumes: the questions follow from it, and need the votes before.
    run.ledger = Ledger(facts, source.ledger.rounds, source.ledger.clients)
    for question in run.certifier.questions:
        if question.needs_votes and has_votes(source.directory, question.request):
            digest = question.request.digest
            for name in (f"votes/{digest}.npz", f"resample/models-{digest}.safetensors"):
                if source.directory.has(name):
                    target.write(name, source.directory.read(name))


def vote_seed(run: RunResult) -> int | str:
    """Return the seed of the votes of a run.

    The result is "secret" if the seed was drawn in secret.
    """
    own_seed = run.config.seeds.votes
    return run.config.seed if own_seed is None else own_seed
