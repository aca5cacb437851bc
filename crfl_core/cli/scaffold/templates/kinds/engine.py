"""An engine for crfl."""

from __future__ import annotations

from collections.abc import Iterator

from crfl_core.extend import Engine, Job, LocalUpdates, TrainingTask
from pydantic import Field, PrivateAttr


class MyPlugin(Engine):
    """Trains clients in this process, in reverse order: no result depends on the order.

    An engine for other processes sends `Job.specification` there, opens it with `crfl_core.extend.open_job`, and lets
    every process train a part.
    """

    at_once: int = Field(8, ge=1, description="clients that are trained together")

    _job: Job | None = PrivateAttr(default=None)

    def open(self, job: Job) -> None:
        """Keep the job in a private attribute: options are frozen."""
        self._job = job

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        """Train every participant exactly once, in parts, in any order."""
        assert self._job is not None
        for part in reversed(task.parts(self.at_once)):
            yield self._job.train(task, part)

    def close(self) -> None:
        """Release the job. Called once, also after an error."""
        self._job = None
