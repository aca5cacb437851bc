"""Bridge between the rounds of the core and the loop of a Flower app: each waits for the other."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from crfl_core.errors import OptionError
from crfl_core.plugin_api.engine import Engine, Job
from crfl_core.plugin_api.hookspecs import hookimpl
from crfl_core.plugin_api.tracker import Tracker
from crfl_core.records.round import Layout, LocalUpdates, TrainingTask
from crfl_core.records.run_context import RunContext

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core import RunResult

Answers = Sequence[tuple[int, "Tensor | None"]]
"""The update (P,) of every participant by its place; None if its reply does not count."""


class AppStopped(Exception):
    """Raised in the rounds of the core when the Flower app has stopped."""


class StrategyBridge:
    """Two queues: tasks to the app, answers to the core. The last task is the result of the run, or its error."""

    def __init__(self) -> None:
        self._tasks: queue.Queue[TrainingTask | RunResult | BaseException] = queue.Queue()
        self._answers: queue.Queue[Answers | None] = queue.Queue()
        self.layout: Layout | None = None

    def send_task(self, task: TrainingTask) -> Answers:
        """Send a task to the app and return its answers."""
        self._tasks.put(task)
        answers = self._answers.get()
        if answers is None:
            raise AppStopped("the app stopped before the last round")
        return answers

    def send_outcome(self, outcome: RunResult | BaseException) -> None:
        """Send the outcome of the run; no task follows."""
        self._tasks.put(outcome)

    def wait_for_task(self) -> TrainingTask | RunResult:
        """Return the next task, or the result.

        If an error ended the run, raise it.
        """
        found = self._tasks.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def send_answers(self, answers: Answers | None) -> None:
        """Send the replies of the last task's participants.

        None says that the app has stopped.
        """
        self._answers.put(answers)


CURRENT_BRIDGE: ContextVar[StrategyBridge | None] = ContextVar(
    "where the app of this context waits for rounds", default=None
)


class FlowerStrategy(Engine):
    """Trains in a Flower app that uses `CrflStrategy`."""

    def open(self, job: Job) -> None:  # noqa: ARG002
        """Check that a Flower app is running."""
        if CURRENT_BRIDGE.get() is None:
            raise OptionError("type", "trains in an app of Flower: use `crfl_flower.strategy.CrflStrategy` there")

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        """Yield the updates that the app's clients sent."""
        from crfl_flower.messages import local_update

        bridge = CURRENT_BRIDGE.get()
        assert bridge is not None
        for place, update in bridge.send_task(task):
            found = task.starts.new_full(task.starts.shape[-1:], float("nan")) if update is None else update
            yield local_update(place, found[None])


class LayoutTracker(Tracker):
    """Tracker that tells the app the layout of the model's parameters."""

    @hookimpl
    def crfl_run_started(self, run: RunContext) -> None:
        """Store the layout before the first round."""
        bridge = CURRENT_BRIDGE.get()
        if bridge is not None:
            bridge.layout = run.model.layout
