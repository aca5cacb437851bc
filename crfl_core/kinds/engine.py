"""Engines: where clients train."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from crfl_core.kinds.plugin import Plugin
from crfl_core.updates import LocalUpdates, Round

if TYPE_CHECKING:
    from torch import Tensor


class Job(Protocol):
    """The local training of a run. Depends on nothing but its arguments, so any process may do any part."""

    @property
    def specification(self) -> str:
        """Text from which `crfl_core.open_job` rebuilds this job in another process."""

    def train(self, start: Tensor, current: Round, part: slice) -> LocalUpdates:
        """Train the participants `part` of a round from the models `start`, (R, P)."""


class Engine(Plugin):
    """Runs local training, honest and poisoned. The server's step, crafting and aggregation stay in the core.

    What it opens (workers, connections) lives in private attributes between `open` and `close`.
    """

    @abstractmethod
    def open(self, job: Job) -> None:
        """Called once, before the first round."""

    @abstractmethod
    def train(self, start: Tensor, current: Round) -> Iterator[LocalUpdates]:
        """Every participant of the round exactly once, in parts, in any order."""

    def close(self) -> None:
        """Called once, after the last round or an error."""
