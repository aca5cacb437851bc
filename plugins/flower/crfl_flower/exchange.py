"""Orders to nodes and what comes back of them, each checked by itself, until a deadline."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from crfl_core.extend import Clients, RunError
from crfl_flower.bounded_grid import TooLarge
from crfl_flower.registration import Question, read_samples
from crfl_flower.wire import OVERHEAD, Malformed, Order, read_update

PAUSE = 0.2
"""Seconds between two looks for replies."""
ROUNDING = {torch.float32: 1e-4, torch.float64: 1e-9}
"""By how much, relatively, rounding may carry an honest update beyond its bound, as the core allows it."""


class ReplyGrid(Protocol):
    """What is needed of a grid."""

    def push_messages(self, messages: list[Message]) -> Any:
        """Send messages; their numbers."""

    def pull_reply(self, message_id: str, limit: int) -> Message | None:
        """The reply to a message, if it is there. Raises `TooLarge`."""


class Exchange:
    """The nodes of a federation: `nodes[i]` is the one of client i, known by its key, whatever it says itself."""

    def __init__(
        self, grid: ReplyGrid, nodes: list[int], journal: Path, say: Callable[[str], object] = lambda _: None
    ) -> None:
        self._grid = grid
        self._nodes = nodes
        self._journal = journal
        self.say = say

    @property
    def total(self) -> int:
        """The number of clients."""
        return len(self._nodes)

    def replies(
        self, orders: Mapping[int, Order], clients: Clients, until: float
    ) -> Iterator[tuple[int, Tensor | None, str]]:
        """Every order with its update, (K, P), or with what is wrong; as they come, the last at the deadline."""
        contents = {place: order.content() for place, order in orders.items()}
        to = {place: self._nodes[order.client] for place, order in orders.items()}
        limits = {place: order.largest_reply for place, order in orders.items()}
        group = str(next(iter(orders.values())).round) if orders else ""
        for place, message, problem in self.answers(contents, to, limits, ("train", group, until)):
            if message is None:
                yield place, None, problem
            else:
                yield place, *checked(orders[place], message, clients.take(slice(place, place + 1)))

    def registered(self, questions: Mapping[int, Question], until: float) -> list[int]:
        """The number of samples of every client. Raises `RunError` if one does not answer well: nobody is left out."""
        contents = {client: question.content() for client, question in questions.items()}
        limits = dict.fromkeys(questions, OVERHEAD)
        samples = {}
        for client, message, problem in self.answers(
            contents, dict(enumerate(self._nodes)), limits, ("query", "register", until)
        ):
            try:
                if message is None:
                    raise Malformed(problem)
                samples[client] = read_samples(questions[client], message)
            except Malformed as error:
                raise RunError(f"client {client} did not register: {error}: no round starts without it") from error
        return [samples[client] for client in sorted(samples)]

    def answers(
        self,
        contents: Mapping[int, RecordDict],
        nodes: Mapping[int, int],
        limits: Mapping[int, int],
        sending: tuple[str, str, float],
    ) -> Iterator[tuple[int, Message | None, str]]:
        """Send every content to its node, and yield what comes back, or what is wrong with it."""
        kind, group, until = sending
        seconds = max(1.0, until - time.monotonic())
        waiting: dict[str, int] = {}
        for place, content in contents.items():
            message = Message(content, dst_node_id=nodes[place], message_type=kind, ttl=seconds, group_id=group)
            (number,) = self._grid.push_messages([message]) or (None,)
            if number:
                waiting[number] = place
            else:
                yield place, None, "a node that Flower does not know"
        while waiting:
            for number, place in list(waiting.items()):
                found, problem = self._pulled(number, nodes[place], limits[place])
                if found is not None or problem:
                    del waiting[number]
                    yield place, found, problem
            if waiting and time.monotonic() >= until:
                break
            if waiting:
                time.sleep(PAUSE)
        for place in waiting.values():
            yield place, None, f"no reply within {seconds:.0f} s"

    def _pulled(self, number: str, node: int, limit: int) -> tuple[Message | None, str]:
        try:
            found = self._grid.pull_reply(number, limit)
        except TooLarge:
            return None, f"a reply of more than {limit:,} bytes"
        except (KeyError, ValueError, TypeError, IndexError, AttributeError, RecursionError) as error:
            return None, f"something unreadable, {type(error).__name__}"
        if found is not None and not found.has_error() and found.metadata.src_node_id != node:
            return None, "a reply of another node"
        return found, ""

    def note(self, number: int, client: int, problem: str) -> None:
        """Say and write down whose reply does not count, and why."""
        self.say(f"round {number}: client {client} counts as a zero update: {problem}")
        with self._journal.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"round": number, "client": client, "problem": problem}) + "\n")


CURRENT: ContextVar[Exchange | None] = ContextVar("the federation that engines of this context train on", default=None)


def checked(order: Order, message: Message, client: Clients) -> tuple[Tensor | None, str]:
    """The update in a reply, or what is wrong with it."""
    try:
        update = read_update(order, message)
        check_honest(update, order.starts, client)
    except Malformed as error:
        return None, str(error)
    except Exception as error:  # whatever a node made Flower stumble over
        return None, f"something unreadable, {type(error).__name__}"
    return update, ""


def check_honest(update: Tensor, starts: Tensor, client: Clients) -> None:
    """Raise `Malformed` if no training of the protocol can have led there: then it is no update of an honest client."""
    bound = float(client.update_bound[0])
    if bound == float("inf"):
        return
    lost = 1.0 - float(client.retention[0])
    steps = int(client.steps[0])
    rounding = ROUNDING[update.dtype]
    start = torch.linalg.vector_norm(starts, dim=1).double()
    residual = torch.linalg.vector_norm(update + lost * starts, dim=1).double()
    allowed = bound + rounding * (bound + lost * start) / 2 + steps * torch.finfo(update.dtype).eps * start / 2
    if bool((residual > allowed).any()):
        raise Malformed(f"an update of norm {float(residual.max()):.4g}, the protocol allows {bound:.4g}")
