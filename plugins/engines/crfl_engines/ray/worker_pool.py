"""Workers of a run: started, given parts of its rounds, and replaced when they die."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from crfl_core.extend import CrflError, CrflWarning, PluginFailure, RunError
from crfl_engines.ray.cluster import gone_message, import_ray, is_reachable
from crfl_engines.ray.worker import Worker, local_versions

PARTS_PER_WORKER = 2
"""Parts that a worker has: one that it works on, and one that waits."""
PARTS_AHEAD_PER_WORKER = 3
"""Parts for each worker that are handed out from the one whose turn it is; what is done early waits at its worker."""
PREFETCHED_PARTS = 2
"""Parts that are on their way to this machine while another is used."""
MAX_TRIES = 3
"""Workers that may be lost with the same part, and times that each may be replaced."""
LOOK_SECONDS = 5.0
"""Seconds between two looks for the control store of the cluster."""
GONE_SECONDS = 20.0
"""Seconds after which a control store that does not answer is gone. Ray ends all processes after a minute."""
POLL_SECONDS = 1.0
"""Seconds between two looks at the clock."""


class WorkerHandle:
    """One worker and its calls: part and place of the answer, by the reference that signals the end."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.place = ""
        self.calls: dict[Any, tuple[int, Any]] = {}


class PartQueue:
    """Parts of a round: those left, answers that wait for earlier ones, and tries of each part."""

    def __init__(self, parts: Sequence[slice]) -> None:
        self.parts = parts
        self.answers: dict[int, Any] = {}
        self._first = 0
        self._left = list(range(len(parts)))
        self._tries: Counter[int] = Counter()

    @property
    def is_over(self) -> bool:
        """Check whether all parts were used."""
        return self._first == len(self.parts)

    @property
    def next(self) -> int | None:
        """Return the part whose turn it is.

        The result is None if that part is not done yet.
        """
        return self._first if self._first in self.answers else None

    @property
    def upcoming(self) -> list[Any]:
        """Return the references of answers that are needed after the next one."""
        return [
            self.answers[number]
            for number in range(self._first + 1, self._first + 1 + PREFETCHED_PARTS)
            if number in self.answers
        ]

    def take(self, ahead: int) -> int | None:
        """Take the first part that is left.

        The result is None if no part is left, or if the first is too far ahead of the next one.
        """
        if not self._left or self._left[0] >= self._first + ahead:
            return None
        return self._left.pop(0)

    def store(self, number: int, answer: Any) -> None:
        """Store the reference of an answer."""
        self.answers[number] = answer

    def finish_next(self) -> None:
        """Remove the next part, which was used."""
        self.answers.pop(self._first, None)
        self._first += 1

    def requeue(self, numbers: Sequence[int], why: str) -> None:
        """Queue parts again. Raises `RunError` if one seems to kill its workers."""
        self._left = sorted({*self._left, *numbers})
        self._tries.update(numbers)
        for number in numbers:
            self.answers.pop(number, None)
            if self._tries[number] >= MAX_TRIES:
                part = self.parts[number]
                raise RunError(
                    f"engine: {MAX_TRIES} workers were lost with the same part, {part.start} to {part.stop - 1} "
                    f"({why}): if memory ran out, lower engine.chunk_clients"
                )


class WorkerPool:
    """Workers that hold the job of a run.

    `wanted` of them have `deadline` seconds to appear. After faults the work continues with `least` of them, and with
    fewer no longer than the deadline.
    """

    def __init__(self, specification: str, wanted: int, least: int, deadline: float, *, address: str) -> None:
        self._ray = import_ray()
        self._specification = self._ray.put(specification)
        self._wanted = wanted
        self._least = least
        self._deadline = deadline
        self._address = address
        self._looked = time.monotonic()
        self._workers: list[WorkerHandle] = []
        self._starting: dict[Any, WorkerHandle] = {}
        self._starts_left = (1 + MAX_TRIES) * wanted
        self._enough_until = time.monotonic()
        self._has_told = False

    def __len__(self) -> int:
        return len(self._workers)

    def start(self) -> None:
        """Start all workers and wait for them.

        Raises `RunError` if they do not come.
        """
        self._enough_until = time.monotonic()
        for _ in range(self._wanted):
            self._start_worker()
        while len(self._workers) < self._wanted:
            self._check_cluster()
            self._check_enough(self._wanted)
            self._add_workers(self._wait_for(list(self._starting)))

    def run(self, method: str, shared: tuple[Any, ...], parts: Sequence[slice]) -> Iterator[tuple[slice, Any]]:
        """Yield the answers to `method(*shared, part)`, in order of parts.

        `shared` lies in Ray's store.
        """
        shift = PartQueue(parts)
        try:
            while not shift.is_over:
                self._assign(method, shared, shift)
                calls = {word: hand for hand in self._workers for word in hand.calls}
                ready = self._wait_for([*calls, *self._starting], POLL_SECONDS if shift.next is None else 0)
                self._add_workers([ref for ref in ready if ref in self._starting])
                for word in ready:
                    if word in calls and word in calls[word].calls:
                        self._collect(calls[word], word, shift)
                yield from self._fetch_next(shift)
                self._check_cluster()
                self._check_enough(self._least)
        finally:
            for hand in self._workers:
                hand.calls.clear()

    def stop(self) -> None:
        """Stop all workers."""
        for hand in [*self._workers, *self._starting.values()]:
            self._ray.kill(hand.handle)
        self._workers = []
        self._starting = {}

    def _assign(self, method: str, shared: tuple[Any, ...], shift: PartQueue) -> None:
        """Assign parts to workers.

        A worker gets a second part only when all have one.
        """
        for load in range(PARTS_PER_WORKER):
            for hand in self._workers:
                if len(hand.calls) != load:
                    continue
                number = shift.take(PARTS_AHEAD_PER_WORKER * len(self._workers))
                if number is None:
                    return
                call = getattr(hand.handle, method).options(num_returns=2)
                word, answer = call.remote(*shared, shift.parts[number])
                hand.calls[word] = number, answer

    def _wait_for(self, refs: list[Any], pause: float = POLL_SECONDS) -> list[Any]:
        """Wait until one of the references is ready, or for a pause."""
        ready: list[Any]
        if not refs:
            time.sleep(pause)
            return []
        ready, others = self._ray.wait(refs, timeout=pause)
        if ready and others:
            ready += self._ray.wait(others, num_returns=len(others), timeout=0)[0]
        return ready

    def _collect(self, hand: WorkerHandle, word: Any, shift: PartQueue) -> None:
        """Collect a finished call, or replace the worker if it is gone."""
        try:
            self._ray.get(word, timeout=self._deadline)
        except self._ray.exceptions.RayTaskError as error:
            raise worker_error(error) from error
        except self._ray.exceptions.RayError as error:
            self._replace_worker(hand, shift, first_sentence(error))
        else:
            shift.store(*hand.calls.pop(word))

    def _fetch_next(self, shift: PartQueue) -> Iterator[tuple[slice, Any]]:
        """Yield the next part if it is done.

        Parts behind it are fetched meanwhile.
        """
        if (number := shift.next) is None:
            return
        if coming := shift.upcoming:
            self._ray.wait(coming, num_returns=len(coming), timeout=0)
        try:
            answer = self._ray.get(shift.answers[number], timeout=self._deadline)
        except self._ray.exceptions.RayError as error:
            why = first_sentence(error)
            self._warn_once(f"what a worker has done is lost ({why})")
            shift.requeue([number], why)
            return
        shift.finish_next()
        yield shift.parts[number], answer

    def _replace_worker(self, hand: WorkerHandle, shift: PartQueue, why: str) -> None:
        """Replace a lost worker, and queue its parts again."""
        self._warn_once(f"a worker is lost, {hand.place} ({why})")
        self._ray.kill(hand.handle)
        self._workers.remove(hand)
        numbers = [number for number, _ in hand.calls.values()]
        hand.calls.clear()
        self._start_worker()
        shift.requeue(numbers, why)

    def _warn_once(self, what: str) -> None:
        """Warn about the first loss."""
        if not self._has_told:
            self._has_told = True
            warnings.warn(
                f"engine: {what}: its parts are done again by others, which changes no bit; further losses are not "
                "told",
                CrflWarning,
                stacklevel=2,
            )

    def _start_worker(self) -> None:
        """Start one more worker on the least loaded machine.

        It does nothing if too many workers have died.
        """
        if not self._starts_left:
            return
        self._starts_left -= 1
        options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
        hand = WorkerHandle(self._ray.remote(**options)(Worker).remote())
        self._starting[hand.handle.open.remote(self._specification, local_versions())] = hand

    def _add_workers(self, refs: Sequence[Any]) -> None:
        """Add workers that are ready."""
        for ref in refs:
            hand = self._starting.pop(ref)
            try:
                hand.place = self._ray.get(ref, timeout=self._deadline)
            except self._ray.exceptions.RayTaskError as error:
                raise worker_error(error) from error
            except self._ray.exceptions.RayError as error:
                self._start_worker()
                if not self._workers and not self._starting:
                    raise RunError(f"engine: workers die before they begin ({first_sentence(error)})") from error
            else:
                self._workers.append(hand)

    def _check_cluster(self) -> None:
        """Raise `RunError` if the control store is gone.

        Ray itself would end this process without a message.
        """
        if time.monotonic() < self._looked + LOOK_SECONDS:
            return
        gone = time.monotonic() + GONE_SECONDS
        while not is_reachable(self._address):
            if time.monotonic() > gone:
                raise RunError(f"engine: {gone_message(self._address)}")
            time.sleep(POLL_SECONDS)
        self._looked = time.monotonic()

    def _check_enough(self, needed: int) -> None:
        """Raise `RunError` if there were too few workers for too long."""
        if len(self._workers) >= needed:
            self._enough_until = time.monotonic()
        elif time.monotonic() > self._enough_until + self._deadline:
            alive = [node for node in self._ray.nodes() if node["Alive"]]
            total = sum(int(node["Resources"].get("CPU", 0)) for node in alive)
            raise RunError(
                f"engine: {len(self._workers)} of {needed} workers were there within {self._deadline:g} s, and the "
                f"cluster has {len(alive)} nodes with {total} CPUs, of which others may use some: lower "
                "engine.workers, raise engine.deadline, or add nodes"
            )


def worker_error(error: Any) -> CrflError:
    """Return an error of a worker as an error of this process."""
    cause = error.cause
    return cause if isinstance(cause, CrflError) else PluginFailure(f"{type(cause).__name__}: {cause}")


def first_sentence(error: Exception) -> str:
    """Return the first sentence of Ray's message, which is a page long."""
    return str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".:")
