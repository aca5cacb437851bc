"""Engines: where clients train, and where votes are counted."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Protocol

from crfl_core.plugin_api.base import Plugin
from crfl_core.records.round import LocalUpdates, TrainingTask
from crfl_core.records.vote_counting import CountingTask, PartialCount


class Job(Protocol):
    """The local training of a run, and its votes. Depends on nothing but its arguments: any process may do any part."""

    @property
    def specification(self) -> str:
        """Text from which `crfl_core.extend.open_job` rebuilds this job in another process."""

    def train(self, task: TrainingTask, part: slice) -> LocalUpdates:
        """Train the participants `part` of a round."""

    def count_votes(self, task: CountingTask, part: slice) -> PartialCount:
        """Count the votes on the test samples `part`, which are whole blocks of the task."""


class Engine(Plugin):
    """Runs local training, honest and poisoned. The server's step, crafting and aggregation stay in the core.

    What it opens (workers, connections) lives in private attributes between `open` and `close`. The server takes parts
    as they come and checks each of them.
    """

    @abstractmethod
    def open(self, job: Job) -> None:
        """Called once, before the first round."""

    @abstractmethod
    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        """Every participant of the round exactly once, in parts, in any order."""

    def count_votes(self, task: CountingTask) -> Iterator[PartialCount]:  # noqa: ARG002
        """Votes on test samples, each at most once, in parts of whole blocks, in any order.

        What is not counted here, the server counts itself: by default everything. It compares some of the rest.
        """
        return iter(())

    def close(self) -> None:
        """Called once, after the last round or an error."""
