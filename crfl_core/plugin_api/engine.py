"""Engines: processes that train clients and count votes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol

from crfl_core.plugin_api.base import Plugin
from crfl_core.records.round import LocalUpdates, TrainingTask
from crfl_core.records.vote_counting import CountingTask, PartialCount


class Job(Protocol):
    """Local training and votes of a run. It depends only on its arguments, so any process may do any part."""

    @property
    def specification(self) -> str:
        """Return text from which `crfl_core.extend.open_job` rebuilds this job in another process."""

    def train(self, task: TrainingTask, part: slice) -> LocalUpdates:
        """Train the participants `part` of a round."""

    def train_parts(self, task: TrainingTask, parts: Sequence[slice]) -> list[LocalUpdates]:
        """Train several parts, each as `train` does, to the last bit: faster than one by one if they are small."""

    def count_votes(self, task: CountingTask, part: slice) -> PartialCount:
        """Count the votes on the test samples `part`.

        These are whole blocks of the task.
        """


class Engine(Plugin):
    """Runs local training, honest and poisoned. The server's step, crafting and aggregation stay in the core.

    Workers and connections live in private attributes between `open` and `close`. The server takes parts in any order
    and checks each of them.
    """

    @abstractmethod
    def open(self, job: Job) -> None:
        """Start workers or connections. Called once, before the first round."""

    @abstractmethod
    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        """Train every participant of the round exactly once.

        The parts come in any order.
        """

    def count_votes(self, task: CountingTask) -> Iterator[PartialCount]:  # noqa: ARG002
        """Count votes on test samples, each at most once.

        They come in parts of whole blocks, in any order. The server counts the samples that are left out, by default
        all of them, and recounts some of the others.
        """
        return iter(())

    def close(self) -> None:
        """Stop what `open` started.

        Called once, after the last round or an error.
        """


IN_PROCESS = {("crfl_engines.local", "Local"), ("crfl_engines.stacked", "Stacked")}
"""Modules and names of the engines that train and count with the core's own code, in this process."""


def is_in_process(engine: Engine) -> bool:
    """Ask whether an engine of crfl works in this process alone.

    All its work must be done here. Other engines are trusted.
    """
    return (type(engine).__module__, type(engine).__qualname__) in IN_PROCESS
