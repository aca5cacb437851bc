"""Where the rounds of the core and the loop of somebody's Flower app meet: each waits for the other."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from crfl_core.errors import OptionError
from crfl_core.plugin_api.engine import Engine, Job
from crfl_core.plugin_api.hookspecs import hookimpl
from crfl_core.plugin_api.tracker import RunContext, Tracker
from crfl_core.records.round import Layout, LocalUpdates, TrainingTask

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core import RunResult

Answers = Sequence[tuple[int, "Tensor | None"]]
"""The update (P,) of every participant by its place, None if it did not answer well."""


class AppStopped(Exception):
    """The app has stopped, and the rounds with it."""


class StrategyBridge:
    """Tasks go one way, answers the other. What ends the run comes as the last task: its result, or its error."""

    def __init__(self) -> None:
        self._tasks: queue.Queue[TrainingTask | RunResult | BaseException] = queue.Queue()
        self._answers: queue.Queue[Answers | None] = queue.Queue()
        self.layout: Layout | None = None

    def send_task(self, task: TrainingTask) -> Answers:
        """Hand a task to the app, and wait for what comes of it."""
        self._tasks.put(task)
        answers = self._answers.get()
        if answers is None:
            raise AppStopped("the app stopped before the last round")
        return answers

    def send_outcome(self, outcome: RunResult | BaseException) -> None:
        """No task comes any more."""
        self._tasks.put(outcome)

    def wait_for_task(self) -> TrainingTask | RunResult:
        """The next task, or the result; raises what the run raised."""
        found = self._tasks.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def send_answers(self, answers: Answers | None) -> None:
        """What the participants of the last task sent; None: nobody will ever answer."""
        self._answers.put(answers)


CURRENT_BRIDGE: ContextVar[StrategyBridge | None] = ContextVar(
    "where the app of this context waits for rounds", default=None
)


class FlowerStrategy(Engine):
    """Trains in an app of Flower that uses `CrflStrategy`, and nowhere else."""

    def open(self, job: Job) -> None:  # noqa: ARG002
        """See that there is an app."""
        if CURRENT_BRIDGE.get() is None:
            raise OptionError("type", "trains in an app of Flower: use `crfl_flower.strategy.CrflStrategy` there")

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        """What the app's clients sent."""
        from crfl_flower.messages import local_update

        meeting = CURRENT_BRIDGE.get()
        assert meeting is not None
        for place, update in meeting.send_task(task):
            found = task.starts.new_full(task.starts.shape[-1:], float("nan")) if update is None else update
            yield local_update(place, found[None])


class LayoutTracker(Tracker):
    """Tells the app how the parameters of the model lie."""

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        """Before the first round."""
        meeting = CURRENT_BRIDGE.get()
        if meeting is not None:
            meeting.layout = run.model.layout
