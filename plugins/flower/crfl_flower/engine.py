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
    """Trains on nodes that run `crfl federation join`, over Flower; the server runs `crfl federation serve`.

    Each node is asked once per round. A reply that is missing, late, broken or too large counts as a zero update that
    keeps its weight, so no reply decides whether another one counts.
    """

    folder: UserPath = Field(
        UserPath("server"), description="what `crfl federation init` wrote for the server: certificate, keys of nodes"
    )
    address: str = Field("127.0.0.1:9092", pattern=r"^.+:[0-9]+$", description="host:port where nodes find the server")
    deadline: float = Field(120.0, gt=0, allow_inf_nan=False, description="seconds that nodes have in a round")
    wait: float = Field(
        600.0, gt=0, allow_inf_nan=False, description="seconds that nodes have to join, and then to register"
    )

    _specification: str = PrivateAttr(default="")
    _exchange: Exchange | None = PrivateAttr(default=None)

    def open(self, job: Job) -> None:
        """Connect to the federation that `crfl federation serve` has started.

        The engine also prepares what the server tells its nodes.
        """
        from crfl_flower.client_app import specification_for_nodes
        from crfl_flower.exchange import CURRENT_EXCHANGE

        self._exchange = CURRENT_EXCHANGE.get()
        if self._exchange is None:
            raise OptionError("type", "trains on nodes that join: start it with `crfl federation serve`")
        self._specification = specification_for_nodes(job.specification)

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        """Yield one update per participant as replies arrive.

        NaN updates for missing replies come last.
        """
        from crfl_flower.messages import TrainingOrder, local_update

        assert self._exchange is not None
        total = self._exchange.total
        orders = {
            place: TrainingOrder.for_participant(task, place, total, self._specification, secrets.token_hex(16))
            for place in range(len(task.clients))
        }
        missing = {}
        for place, update, problem in self._exchange.gather_updates(
            orders, task.clients, time.monotonic() + self.deadline
        ):
            if update is None:
                missing[place] = problem
            else:
                yield local_update(place, update)
        if missing and not task.attacked:
            place, problem = next(iter(missing.items()))
            raise RunError(
                f"round {task.number} of a continuation: client {int(task.clients.ids[place])}: {problem}: every node "
                "must answer while certificates such as 'tail' are computed: start its node, or leave these "
                "certificates out"
            )
        for place, problem in missing.items():
            self._exchange.record_problem(task.number, int(task.clients.ids[place]), problem)
            yield local_update(place, task.starts.new_full((len(task.starts), task.starts.shape[-1]), float("nan")))

    def close(self) -> None:
        """Leave the federation."""
        self._exchange = None
