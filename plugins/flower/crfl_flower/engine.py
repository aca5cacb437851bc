"""Engine that trains on nodes: send orders, gather replies, fill in zero updates for missing or broken ones."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field, PrivateAttr

from crfl_core.errors import OptionError, RunError
from crfl_core.files.data_files import UserPath
from crfl_core.plugin_api.engine import Engine, Job
from crfl_core.records.round import LocalUpdates, TrainingTask

if TYPE_CHECKING:
    from crfl_flower.exchange import Exchange


class Flower(Engine):
    """Trains on nodes that joined with `crfl join`, over Flower; the server starts with `crfl serve`.

    A reply that is missing, late, broken or too large counts as a zero update that keeps its weight.
    """

    folder: UserPath = Field(
        UserPath("server"), description="what `crfl federation init` wrote for the server: certificate, keys of nodes"
    )
    address: str = Field("127.0.0.1:9092", pattern=r"^.+:[0-9]+$", description="host:port where nodes find the server")
    deadline: float = Field(120.0, gt=0, allow_inf_nan=False, description="seconds that nodes have in a round")
    min_replies: int = Field(1, ge=1, description="good replies without which a round is tried again, then stops")
    attempts: int = Field(3, ge=1, description="how often those who did not answer are asked in a round")
    wait: float = Field(
        600.0, gt=0, allow_inf_nan=False, description="seconds that nodes have to join, and then to register"
    )

    _specification: str = PrivateAttr(default="")
    _exchange: Exchange | None = PrivateAttr(default=None)

    def open(self, job: Job) -> None:
        """Connect to the federation that `crfl serve` has started and prepare what its nodes are told."""
        from crfl_flower.client_app import specification_for_nodes
        from crfl_flower.exchange import CURRENT_EXCHANGE

        self._exchange = CURRENT_EXCHANGE.get()
        if self._exchange is None:
            raise OptionError("type", "trains on nodes that join: start it with `crfl serve`, not in this process")
        self._specification = specification_for_nodes(job.specification)

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        """Yield one update per participant as replies arrive; NaN updates for missing replies come last."""
        from crfl_flower.messages import TrainingOrder, local_update

        assert self._exchange is not None
        missing = dict.fromkeys(range(len(task.clients)), "")
        for attempt in range(1, self.attempts + 1):
            total = self._exchange.total
            orders = {
                place: TrainingOrder.for_participant(task, place, total, self._specification, secrets.token_hex(16))
                for place in missing
            }
            until = time.monotonic() + self.deadline
            for place, update, problem in self._exchange.gather_updates(orders, task.clients, until):
                if update is None:
                    missing[place] = problem
                else:
                    del missing[place]
                    yield local_update(place, update)
            if len(task.clients) - len(missing) >= min(self.min_replies, len(task.clients)):
                break
            self._exchange.say(f"round {task.number}: too few good replies, attempt {attempt} of {self.attempts}")
        else:
            good = len(task.clients) - len(missing)
            wanted = min(self.min_replies, len(task.clients))
            raise RunError(
                f"round {task.number}: {good} good replies after {self.attempts} attempts, engine.min_replies is "
                f"{wanted}: check that the nodes are up, then start `crfl serve` again, which resumes here"
            )
        for place, problem in missing.items():
            self._exchange.record_problem(task.number, int(task.clients.ids[place]), problem)
            yield local_update(place, task.starts.new_full((len(task.starts), task.starts.shape[-1]), float("nan")))

    def close(self) -> None:
        """Leave the federation."""
        self._exchange = None
