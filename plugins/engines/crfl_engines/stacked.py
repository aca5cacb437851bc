"""Engine `stacked`: runs of one process train their clients as one stack of models.

Cells that differ in what the server does (its noise, its clip norm, its rules) share data and batches. In a worker they
run side by side, each with a server, a ledger and a directory of its own; only local training meets here. The models of
all of them are one stack, each at its own place. Products of a stack round otherwise than those of one model, so the
engine is part of a cell's config: a cell that runs by itself fills the other places with copies of its model, and gets
the same bits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pydantic import Field, PrivateAttr, model_validator

from crfl_core.extend import Engine, Job, LocalUpdates, Tracker, TrainingTask, hookimpl

MAX_STACK_PARAMETERS = 2**26
"""Parameters of a stack of clients' models, 256 MiB in single precision."""


class StackInterrupted(BaseException):
    """Raised when the barrier is over before the run is.

    Like Ctrl-C it ends the run with a checkpoint.
    """


class RoundBarrier:
    """Barrier at which runs of one process wait for each other, round for round.

    `places` are those of the runs that were started, in stacks of `models`. A round is trained when all runs that are
    left have come to a round; the run with the earliest round goes first, such as one behind after an interrupt.
    `most_at_once` runs may train parts of a round at once, or count votes.
    """

    def __init__(self, places: Sequence[int], models: int, most_at_once: int) -> None:
        self._here = set(places)
        self._models = models
        self._most_at_once = most_at_once
        self._changed = threading.Condition()
        self._waiting: dict[int, tuple[TrainingTask, list[slice]]] = {}
        self._shared: dict[int, SharedRound] = {}
        self._voting: set[int] = set()
        self._queue: list[int] = []
        self._over = False

    def has_member(self, place: int) -> bool:
        """Return whether a run takes part.

        Such a run was started and has not left.
        """
        with self._changed:
            return place in self._here

    def join_round(self, place: int, task: TrainingTask, cut: list[slice]) -> SharedRound:
        """Return the round that a run trains with others.

        It waits until the other runs have come.
        """
        with self._changed:
            self._waiting[place] = task, cut
            self._start_round()
            self._changed.wait_for(lambda: place in self._shared or self._over)
            if place not in self._shared:
                raise StackInterrupted
            return self._shared.pop(place)

    def take_turn(self, place: int) -> None:
        """Wait until fewer than `most_at_once` runs count votes, first come first served.

        More of them at once would only compete for the caches.
        """
        with self._changed:
            self._queue.append(place)
            self._changed.wait_for(lambda: self._over or place in self._queue[: self._free_hands])
            self._queue.remove(place)
            self._voting.add(place)
            self._changed.notify_all()

    @property
    def _free_hands(self) -> int:
        return max(0, self._most_at_once - len(self._voting))

    def end_turn(self, place: int) -> None:
        """End a turn of counting votes, so that another run may begin."""
        with self._changed:
            self._voting.discard(place)
            self._changed.notify_all()

    def leave(self, place: int) -> None:
        """Remove a run, which does not come any more."""
        self.end_turn(place)
        with self._changed:
            self._here.discard(place)
            self._waiting.pop(place, None)
            self._start_round()

    def end(self) -> None:
        """Interrupt all runs at their next round."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _start_round(self) -> None:
        """Start the earliest round if all runs are waiting."""
        if self._over or not self._waiting or self._waiting.keys() != self._here:
            return
        first = min(self._waiting, key=lambda place: (self._waiting[place][0].number, place))
        task, cut = self._waiting[first]
        others = {
            place: own for place, (own, parts) in self._waiting.items() if parts == cut and is_same_training(own, task)
        }
        shared = SharedRound(stack_tasks(others, self._models, task), cut, list(others), self._most_at_once)
        for place in others:
            del self._waiting[place]
            self._shared[place] = shared
        self._changed.notify_all()


class SharedRound:
    """One round of several runs, in parts; a run with nothing ready trains the next part for all."""

    def __init__(self, task: TrainingTask, cut: list[slice], places: Sequence[int], most_at_once: int) -> None:
        self._task = task
        self._left = deque(cut)
        self._count = len(cut)
        self._most_at_once = most_at_once
        self._ready: dict[int, deque[tuple[int, LocalUpdates]]] = {place: deque() for place in places}
        self._changed = threading.Condition()
        self._error: BaseException | None = None

    def parts(self, place: int, job: Job) -> Iterator[tuple[int, LocalUpdates]]:
        """Yield the parts of the round for one run.

        Each part comes with the place of the run that trained it.
        """
        for _ in range(self._count):
            trainer, trained = self._next(place, job)
            yield trainer, select_place(place, trained)

    def _next(self, place: int, job: Job) -> tuple[int, LocalUpdates]:
        ready = self._ready[place]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._error or ready or (self._left and self._most_at_once)))
                if self._error is not None:
                    raise self._error
                if ready:
                    return ready.popleft()
                part = self._left.popleft()
                self._most_at_once -= 1
            self._train(place, job, part)

    def _train(self, place: int, job: Job, part: slice) -> None:
        try:
            trained = job.train(self._task, part)
        except BaseException as error:
            self._error = error
            raise
        else:
            for ready in self._ready.values():
                ready.append((place, trained))
        finally:
            with self._changed:
                self._most_at_once += 1
                self._changed.notify_all()


CURRENT_BARRIER: ContextVar[RoundBarrier | None] = ContextVar("CURRENT_BARRIER", default=None)
"""The barrier that runs of this thread take part in."""


class VoteTurns(Tracker):
    """Tracker that lets stacked runs count their votes in turns, some models at a time."""

    place: int

    @hookimpl
    def crfl_progress(self, phase: str, done: int, total: int) -> None:
        """Let another run take its turn when some models have voted."""
        barrier = CURRENT_BARRIER.get()
        if barrier is None or not barrier.has_member(self.place):
            return
        barrier.end_turn(self.place)
        if phase == "votes" and (done < total or not done):
            barrier.take_turn(self.place)


class Stacked(Engine):
    """Trains the models of several runs of a sweep as one stack; a run by itself has copies of its own beside it."""

    models: int = Field(1, ge=1, description="how many models a stack has")
    place: int = Field(0, ge=0, description="which of them is this run's, from 0")
    parts: int = Field(2, ge=1, description="parts that a round is cut into at least, which can be trained at once")
    chunk_clients: int = Field(64, ge=1, description="clients of a part at most")

    _job: Job | None = PrivateAttr(default=None)
    _barrier: RoundBarrier | None = PrivateAttr(default=None)
    _trusted: set[int] = PrivateAttr(default_factory=set)

    @model_validator(mode="after")
    def _place_in_stack(self) -> Stacked:
        if self.place >= self.models:
            raise ValueError(f"place {self.place} needs at least {self.place + 1} models")
        return self

    def open(self, job: Job) -> None:
        """Join the barrier, if there is one."""
        barrier = CURRENT_BARRIER.get()
        self._job = job
        self._trusted = {self.place}
        self._barrier = barrier if barrier is not None and barrier.has_member(self.place) else None

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        """Train with the other runs of the stack.

        Continuations, which are a stack already, train as they are.
        """
        assert self._job is not None
        cut = self._cut(task)
        if len(task.starts) != 1:
            yield from (self._job.train(task, part) for part in cut)
        elif self._barrier is None:
            yield from (self._alone(task, part) for part in cut)
        else:
            shared = self._barrier.join_round(self.place, task, cut)
            for trainer, found in shared.parts(self.place, self._job):
                if trainer not in self._trusted and self._barrier is not None:
                    self._compare(task, trainer, found)
                yield found if self._barrier is not None else self._alone(task, found.part)

    def close(self) -> None:
        """Leave the barrier, and drop the job, which holds all data."""
        self._leave()
        self._job = None

    def _leave(self) -> None:
        if self._barrier is not None:
            self._barrier.leave(self.place)
        self._barrier = None

    def _cut(self, task: TrainingTask) -> list[slice]:
        clients = len(task.clients)
        room = MAX_STACK_PARAMETERS // (task.starts.shape[-1] * max(self.models, len(task.starts)))
        return task.parts(max(1, min(self.chunk_clients, room, -(-clients // self.parts))))

    def _alone(self, task: TrainingTask, part: slice) -> LocalUpdates:
        assert self._job is not None
        stack = stack_tasks({}, self.models, task)
        return select_place(self.place, self._job.train(stack, part))

    def _compare(self, task: TrainingTask, trainer: int, found: LocalUpdates) -> None:
        """Leave the other runs if one of them trains differently.

        This run trains one client itself and compares the results. If a part of one client rounds otherwise, it trains
        all clients of the part.
        """
        first = found.part.start
        if is_same_result(self._alone(task, slice(first, first + 1)), found) or is_same_result(
            self._alone(task, found.part), found
        ):
            self._trusted.add(trainer)
        else:
            self._leave()


def select_place(place: int, trained: LocalUpdates) -> LocalUpdates:
    """Return the updates of one run from those of the stack."""
    memory = {name: values[place : place + 1] for name, values in trained.memory.items()}
    return replace(trained, updates=trained.updates[place : place + 1], memory=memory)


def stack_tasks(tasks: Mapping[int, TrainingTask], models: int, filler: TrainingTask) -> TrainingTask:
    """Stack the models and the client memory of several runs.

    Each is at its place. Places of runs that are absent hold a copy of another's.
    """
    own = [tasks.get(place, filler) for place in range(models)]
    return replace(
        filler,
        starts=torch.cat([task.starts for task in own]),
        memory={name: torch.cat([task.memory[name] for task in own]) for name in filler.memory},
        mean={name: torch.cat([task.mean[name] for task in own]) for name in filler.mean},
        origins=None
        if filler.origins is None
        else torch.cat([task.origins for task in own if task.origins is not None]),
    )


def is_same_training(one: TrainingTask, other: TrainingTask) -> bool:
    """Check whether two tasks differ in their models alone."""
    return (
        one.number == other.number
        and one.attacked == other.attacked
        and one.starts.shape == other.starts.shape
        and one.memory.keys() == other.memory.keys()
        and (one.origins is None) == (other.origins is None)
        and all(np.array_equal(value, getattr(other.clients, name)) for name, value in vars(one.clients).items())
        and is_same_state(one.attack_state, other.attack_state)
    )


def is_same_state(one: Any, other: Any) -> bool:
    """Check whether the attackers' states of two runs are equal."""
    if one is None or other is None:
        return one is other
    return bool(one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items()))


def is_same_result(one: LocalUpdates, other: LocalUpdates) -> bool:
    """Check whether a part is the beginning of another, bit for bit."""
    count = one.updates.shape[1]
    poison = vars(other.measurements)
    measured = (
        np.array_equal(value, poison[name][:count], equal_nan=True) for name, value in vars(one.measurements).items()
    )
    kept = (torch.equal(values, other.memory[name][:, :count]) for name, values in one.memory.items())
    return torch.equal(one.updates, other.updates[:, :count]) and all(measured) and all(kept)
