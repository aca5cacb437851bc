"""The round of one group: takes in what is its own, aggregates it, and may fail without anybody else noticing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.errors import PluginFailure, RunError
from crfl_core.plugin_api.aggregator import is_linear_chain
from crfl_core.plugin_loading.mutation_guard import InputsChanged
from crfl_core.records.round import BatchMeasurements, LocalUpdates, State
from crfl_core.training import server_optimiser as stepping
from crfl_core.training.aggregation import ChainResult, States
from crfl_core.training.aggregations import Aggregation, LinearSums, WholeRounds
from crfl_core.training.arrivals import Columns, Watched
from crfl_core.training.collecting import Gathering
from crfl_core.training.session import Plan, Session
from crfl_core.training.submissions import Received, Submissions, needs_others
from crfl_core.training.update_memory import check_held, held_at_once


@dataclass(frozen=True)
class Aggregated:
    """What each of the R models of a group is moved by, and what arrived for the first: one entry per participant.

    A group whose round `failed` keeps its models. `own` is what the attackers among the participants submitted, (a, P),
    if they want to know.
    """

    updates: Tensor
    results: tuple[ChainResult, ...]
    norms: NDArray[np.float64]
    bad: NDArray[np.bool_]
    scale: NDArray[np.float64]
    poisoning: BatchMeasurements
    failed: str | None = None
    own: Tensor | None = None


class GroupRound:
    """The round of one group: takes what belongs to it, and lets nothing of it out before the round is over.

    Of several groups one may fail, and the others never notice; a group that is alone fails with the run.
    """

    def __init__(
        self, session: Session, plan: Plan, models: Tensor, states: Sequence[States], attack_state: State | None
    ) -> None:
        self._session = session
        self._plan = plan
        self._models = models
        self._states = states
        self._submissions = Submissions(session.federation, plan, models[0], states[0], attack_state)
        self._watched = None if attack_state is None else Watched(session, plan, models[0])
        self._whole = needs_all(session, plan)
        self._gathering = Gathering(len(plan.clients))
        self._columns = Columns(len(plan.clients))
        self._failed: str | None = None
        self._aggregation: Aggregation | None = None

    def take(self, part: LocalUpdates) -> None:
        """The rows of a part that are this group's, if there are any."""
        own = within(part, self._plan.rows)
        if own is None or self._failed is not None:
            return
        ready = self._gathering.add(own) if self._whole else own
        if ready is not None:
            with self._failing():
                self._add(self._submissions.of(ready))

    def aggregated(self) -> Aggregated:
        """What became of all updates of the group."""
        columns = self._columns
        results = self._results()
        updates = torch.stack([result.update for result in results])
        own = None if self._watched is None else self._watched.own
        arrived = columns.norms, columns.bad, columns.scale, columns.poisoning
        return Aggregated(updates, results, *arrived, self._failed, own)

    def _results(self) -> tuple[ChainResult, ...]:
        with self._failing():
            if self._failed is None:
                self._add(self._submissions.rest())
                self._columns.check_usable(self._plan.number)
                assert self._aggregation is not None
                optimiser = self._plan.server.optimiser
                each = zip(self._models, self._aggregation.results(), self._states, strict=True)
                moved = (stepping.stepped(optimiser, self._plan, *one) for one in each)
                return finite(tuple(moved), self._plan.number)
        count = len(self._plan.clients)
        return tuple(nothing(count, *one) for one in zip(self._models, self._states, strict=True))

    def _add(self, submitted: Iterator[Received]) -> None:
        for received in submitted:
            self._columns.add(received)
            if self._watched is not None:
                self._watched.add(received)
            if self._whole:
                self._columns.check_usable(self._plan.number)
            if self._aggregation is None:
                given = self._plan, self._models, self._states
                streamed = streams(self._session)
                self._aggregation = LinearSums(*given) if streamed else WholeRounds(self._session, *given)
            self._aggregation.add(received)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except InputsChanged:  # what it changed may be what other groups see
            raise
        except (PluginFailure, RunError) as error:
            if self._plan.group is None:
                raise
            self._failed = f"round {self._plan.number}: {error}"


def within(part: LocalUpdates, rows: slice) -> LocalUpdates | None:
    """The rows of a part that lie in a group, counted from the group's first; None if there are none."""
    first = max(part.part.start, rows.start)
    last = min(part.part.stop, rows.stop)
    if first >= last:
        return None
    place = slice(first - rows.start, last - rows.start)
    if last - first == part.part.stop - part.part.start:
        return replace(part, part=place)
    inside = slice(first - part.part.start, last - part.part.start)
    return LocalUpdates(place, part.updates[:, inside], part.measurements.take(np.arange(inside.start, inside.stop)))


def nothing(clients: int, model: Tensor, states: States) -> ChainResult:
    """A round in which nobody's update reached the model."""
    zeros = torch.zeros(clients, dtype=torch.float64)
    return ChainResult(torch.zeros_like(model), zeros, zeros, torch.full_like(zeros, torch.inf), zeros, "all", states)


def finite(results: tuple[ChainResult, ...], number: int) -> tuple[ChainResult, ...]:
    """The results of a chain, whose aggregates are numbers."""
    for result in results:
        if not torch.isfinite(result.update).all():
            raise PluginFailure(
                f"aggregation: round {number}: the aggregate of finite updates is not finite in "
                f"{result.update.dtype}: an offset or a weight is too large"
            )
    return results


def streams(session: Session) -> bool:
    """Whether updates can be added up as they arrive: the chain is linear, and bad ones keep their weight."""
    config = session.federation.config
    return (
        is_linear_chain(config.aggregation)
        and config.server.bad_update == "zero"
        and not session.hooks.replaces_weights
    )


def check_room(session: Session) -> None:
    """Refuse rounds whose updates somebody must see all at once if they cannot fit into memory."""
    federation = session.federation
    steps = federation.config.aggregation
    crafts = needs_others(federation.attack)
    held = held_at_once(steps, streams=streams(session), crafts=crafts)
    clients = len(federation.participation.round(1))
    size = federation.model.layout.size
    if federation.device.type == "cpu":
        check_held(steps, held, clients, size, federation.dtype.itemsize)


def needs_all(session: Session, plan: Plan) -> bool:
    """Whether somebody must see all updates at once: the chain, or attackers who craft theirs from the others'."""
    crafts = bool(plan.conduct.attacking.any()) and needs_others(session.federation.attack)
    return crafts or not streams(session)
