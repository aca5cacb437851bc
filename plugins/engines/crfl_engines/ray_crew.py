"""The workers of a run: hired, given parts of its rounds, and replaced when they die."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from crfl_core.extend import CrflError, CrflWarning, PluginFailure, RunError
from crfl_engines.ray_cluster import imported
from crfl_engines.ray_worker import Worker, own_versions

AT_A_TIME = 2
"""Parts that a worker has: one that it works on, and one that waits."""
AHEAD = 3
"""Parts for each worker that are handed out from the first one that is missing: memory is bounded if that is late."""
TRIES = 3
"""How many workers may be lost with the same part, and how often each may be replaced."""
PAUSE = 1.0
"""Seconds between two looks at the clock."""


class Hand:
    """One worker and what it was given: parts by the reference that Ray answers with."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.place = ""
        self.calls: dict[Any, int] = {}


class Shift:
    """The parts of a round: which are left, and how often each was tried."""

    def __init__(self, parts: Sequence[slice]) -> None:
        self.parts = parts
        self._left = list(range(len(parts)))
        self._missing = set(self._left)
        self._tries: Counter[int] = Counter()

    @property
    def is_over(self) -> bool:
        """Whether all parts are there."""
        return not self._missing

    def take(self, ahead: int) -> int | None:
        """The first part that is left, if it is not too far ahead of the first one that is missing."""
        if not self._left or self._left[0] >= min(self._missing) + ahead:
            return None
        return self._left.pop(0)

    def done(self, number: int) -> None:
        """A part is there."""
        self._missing.discard(number)

    def again(self, numbers: Sequence[int], why: str) -> None:
        """Parts have to be done again. Raises `RunError` if one seems to be what workers die of."""
        self._left = sorted({*self._left, *numbers})
        self._tries.update(numbers)
        for number in numbers:
            if self._tries[number] >= TRIES:
                part = self.parts[number]
                raise RunError(
                    f"engine: {TRIES} workers were lost with the same part, {part.start} to {part.stop - 1} ({why}): "
                    "if memory ran out, lower engine.chunk_clients"
                )


class Crew:
    """Workers that hold the job of a run.

    `wanted` of them have `deadline` seconds to appear; after faults the work goes on with `least` of them, and no
    longer than the deadline with fewer.
    """

    def __init__(self, specification: str, wanted: int, least: int, deadline: float) -> None:
        self._ray = imported()
        self._specification = self._ray.put(specification)
        self._wanted, self._least, self._deadline = wanted, least, deadline
        self._hands: list[Hand] = []
        self._coming: dict[Any, Hand] = {}
        self._to_hire = (1 + TRIES) * wanted
        self._enough_until = time.monotonic()
        self._has_told = False

    def __len__(self) -> int:
        return len(self._hands)

    def gather(self) -> None:
        """Hire all workers and wait for them. Raises `RunError` if they do not come."""
        self._enough_until = time.monotonic()
        for _ in range(self._wanted):
            self._hire()
        while len(self._hands) < self._wanted:
            self._check_enough(self._wanted)
            self._welcome(self._ready(list(self._coming)))

    def work(self, method: str, shared: tuple[Any, ...], parts: Sequence[slice]) -> Iterator[tuple[slice, Any]]:
        """What workers answer to `method(*shared, part)`, as they are ready. `shared` lies in Ray's store."""
        shift = Shift(parts)
        try:
            while not shift.is_over:
                self._hand_out(method, shared, shift)
                calls = {ref: hand for hand in self._hands for ref in hand.calls}
                ready = self._ready([*calls, *self._coming])
                self._welcome([ref for ref in ready if ref in self._coming])
                for ref in ready:
                    if ref in calls and ref in calls[ref].calls:
                        yield from self._taken(calls[ref], ref, shift)
                del ready, calls  # references keep answers in memory
                self._check_enough(self._least)
        finally:
            for hand in self._hands:
                hand.calls.clear()

    def dismiss(self) -> None:
        """End all workers."""
        for hand in [*self._hands, *self._coming.values()]:
            self._ray.kill(hand.handle)
        self._hands, self._coming = [], {}

    def _hand_out(self, method: str, shared: tuple[Any, ...], shift: Shift) -> None:
        """Give everybody something to do; nobody gets a second part before all have one."""
        for load in range(AT_A_TIME):
            for hand in self._hands:
                if len(hand.calls) != load:
                    continue
                number = shift.take(AHEAD * len(self._hands))
                if number is None:
                    return
                hand.calls[getattr(hand.handle, method).remote(*shared, shift.parts[number])] = number

    def _ready(self, refs: list[Any]) -> list[Any]:
        """What is there, at least one within a pause."""
        ready: list[Any]
        ready, others = self._ray.wait(refs, timeout=PAUSE)
        if ready and others:
            ready += self._ray.wait(others, num_returns=len(others), timeout=0)[0]
        return ready

    def _taken(self, hand: Hand, ref: Any, shift: Shift) -> Iterator[tuple[slice, Any]]:
        """The answer of a worker; nothing if it was lost with the worker."""
        try:
            answer = self._ray.get(ref, timeout=self._deadline)
        except self._ray.exceptions.RayTaskError as error:
            raise failure(error) from error
        except self._ray.exceptions.RayError as error:
            self._lost(hand, shift, error)
            return
        number = hand.calls.pop(ref)
        shift.done(number)
        yield shift.parts[number], answer

    def _lost(self, hand: Hand, shift: Shift, error: Exception) -> None:
        """A worker is gone, or what it had done: somebody else does its parts."""
        why = first_sentence(error)
        if not self._has_told:
            self._has_told = True
            warnings.warn(
                f"engine: a worker is lost, {hand.place} ({why}): its parts are done again by others, which "
                "changes no bit; further losses are not told",
                CrflWarning,
                stacklevel=2,
            )
        self._ray.kill(hand.handle)
        self._hands.remove(hand)
        shift.again(list(hand.calls.values()), why)
        self._hire()

    def _hire(self) -> None:
        """One worker more, on the machine that has the fewest; not for ever if they keep dying."""
        if not self._to_hire:
            return
        self._to_hire -= 1
        options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
        hand = Hand(self._ray.remote(**options)(Worker).remote())
        self._coming[hand.handle.open.remote(self._specification, own_versions())] = hand

    def _welcome(self, refs: Sequence[Any]) -> None:
        """Workers that are ready."""
        for ref in refs:
            hand = self._coming.pop(ref)
            try:
                hand.place = self._ray.get(ref, timeout=self._deadline)
            except self._ray.exceptions.RayTaskError as error:
                raise failure(error) from error
            except self._ray.exceptions.RayError as error:
                self._hire()
                if not self._hands and not self._coming:
                    raise RunError(f"engine: workers die before they begin ({first_sentence(error)})") from error
            else:
                self._hands.append(hand)

    def _check_enough(self, needed: int) -> None:
        """Raise `RunError` if there were too few workers for too long."""
        if len(self._hands) >= needed:
            self._enough_until = time.monotonic()
        elif time.monotonic() > self._enough_until + self._deadline:
            alive = [node for node in self._ray.nodes() if node["Alive"]]
            total = sum(int(node["Resources"].get("CPU", 0)) for node in alive)
            raise RunError(
                f"engine: {len(self._hands)} of {needed} workers were there within {self._deadline:g} s, and the "
                f"cluster has {len(alive)} nodes with {total} CPUs, of which others may use some: lower "
                "engine.workers, raise engine.deadline, or add nodes"
            )


def failure(error: Any) -> CrflError:
    """What went wrong in a worker, as if it had gone wrong here."""
    cause = error.cause
    return cause if isinstance(cause, CrflError) else PluginFailure(f"{type(cause).__name__}: {cause}")


def first_sentence(error: Exception) -> str:
    """The beginning of what Ray says, which goes on for a page."""
    return str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".:")
