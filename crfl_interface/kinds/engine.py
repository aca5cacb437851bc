"""Engines: where clients train."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Protocol

from crfl_interface.kinds.plugin import Plugin
from crfl_interface.updates import LocalUpdates, TrainingTask


class Job(Protocol):
    """The local training of a run. Depends on nothing but its arguments, so any process may do any part."""

    @property
    def specification(self) -> str:
        """Text from which `crfl_core.extend.open_job` rebuilds this job in another process."""

    def train(self, task: TrainingTask, part: slice) -> LocalUpdates:
        """Train the participants `part` of a round."""


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

    def close(self) -> None:
        """Called once, after the last round or an error."""
