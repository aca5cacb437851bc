"""Exchange with nodes: send orders, and check each reply by itself, until a deadline."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path

import httpx
import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from crfl_core.errors import RunError
from crfl_core.records.round import Clients
from crfl_flower.bounded_grid import POLL_SECONDS, ReplyGrid, read_reply
from crfl_flower.messages import (
    OVERHEAD_BYTES,
    MalformedMessage,
    RegistrationRequest,
    TrainingOrder,
    read_samples,
    read_update,
)
from crfl_flower.reply_limits import GRACE_SECONDS

STEP_BOUND_SLACK = {torch.float32: 1e-4, torch.float64: 1e-9}
"""Relative slack for rounding in the bound on honest updates, by dtype; the same as the core's."""


class Exchange:
    """The nodes of a federation. `nodes[i]` is the node of client i, or None; the server knows it by its key alone."""

    def __init__(
        self, grid: ReplyGrid, nodes: Sequence[int | None], journal: Path, say: Callable[[str], object] = lambda _: None
    ) -> None:
        self._grid = grid
        self._nodes = nodes
        self._journal = journal
        self.say = say

    @property
    def total(self) -> int:
        """Return the number of clients."""
        return len(self._nodes)

    def gather_updates(
        self, orders: Mapping[int, TrainingOrder], clients: Clients, until: float
    ) -> Iterator[tuple[int, Tensor | None, str]]:
        """Yield the update or the problem of every order.

        An item is (place, update, "") or (place, None, problem), where an update has the shape (K, P). The server waits
        until the deadline.
        """
        contents = {place: order.to_record() for place, order in orders.items()}
        to = {place: self._nodes[order.client] for place, order in orders.items()}
        limits = {place: order.max_reply_bytes for place, order in orders.items()}
        group = str(next(iter(orders.values())).round) if orders else ""
        for place, message, problem in self.exchange_messages(contents, to, limits, ("train", group, until)):
            if message is None:
                yield place, None, problem
            else:
                yield place, *check_reply(orders[place], message, clients.take(slice(place, place + 1)))

    def register_clients(self, questions: Mapping[int, RegistrationRequest], until: float) -> list[int]:
        """Return the number of samples of every client.

        Raises `RunError` unless every client answers correctly.
        """
        contents = {client: question.to_record() for client, question in questions.items()}
        limits = dict.fromkeys(questions, OVERHEAD_BYTES)
        samples = {}
        for client, message, problem in self.exchange_messages(
            contents, dict(enumerate(self._nodes)), limits, ("query", "register", until)
        ):
            try:
                if message is None:
                    raise MalformedMessage(problem)
                samples[client] = read_samples(questions[client], message)
            except MalformedMessage as error:
                raise RunError(
                    f"client {client} did not register: {error}: all clients must register before round 1; to start "
                    "without it, delete its key in `nodes` and lower partition.clients"
                ) from error
        return [samples[client] for client in sorted(samples)]

    def exchange_messages(
        self,
        contents: Mapping[int, RecordDict],
        nodes: Mapping[int, int | None],
        limits: Mapping[int, int],
        sending: tuple[str, str, float],
    ) -> Iterator[tuple[int, Message | None, str]]:
        """Send each content to its node and yield the replies.

        An item is (place, reply, "") or (place, None, problem). Raises `RunError` if Flower's SuperLink does not answer
        or refuses this server.
        """
        try:
            yield from self._exchange_messages(contents, nodes, limits, sending)
        except httpx.HTTPError as error:
            log = self._journal.with_name("superlink.log")
            raise RunError(f"Flower's SuperLink stopped answering, {error}: {log} may say why") from error

    def _exchange_messages(
        self,
        contents: Mapping[int, RecordDict],
        nodes: Mapping[int, int | None],
        limits: Mapping[int, int],
        sending: tuple[str, str, float],
    ) -> Iterator[tuple[int, Message | None, str]]:
        kind, group, until = sending
        seconds = max(1.0, until - time.monotonic())
        waiting: dict[str, int] = {}
        self._grid.expect_replies(max(limits.values(), default=0))
        for place, content in contents.items():
            node = nodes[place]
            if node is None:
                yield place, None, "its key is revoked or it has not joined"
                continue
            message = Message(content, dst_node_id=node, message_type=kind, ttl=seconds + GRACE_SECONDS, group_id=group)
            (number,) = self._grid.push_messages([message]) or (None,)
            if number:
                waiting[number] = place
            else:
                yield place, None, "the node has not joined"
        until = time.monotonic() + seconds  # later orders have later deadlines, by the time that it takes to send them
        while waiting:
            last = time.monotonic() >= until
            for number, place in list(waiting.items()):
                found, problem = self._pull_reply(number, nodes[place], limits[place])
                if found is not None or problem:
                    del waiting[number]
                    if found is None or found.has_error():
                        self._grid.drop(number)
                    yield place, found, problem
            if last:
                break
            if waiting:
                time.sleep(POLL_SECONDS)
        for number, place in waiting.items():
            self._grid.drop(number)
            yield place, None, f"no reply within {seconds:.0f} s"

    def _pull_reply(self, number: str, node: int | None, limit: int) -> tuple[Message | None, str]:
        """Return the reply of a node, or a problem.

        The result is (reply, ""), (None, problem), or (None, "") if the reply has not arrived yet.
        """
        found, problem = read_reply(self._grid, number, limit)
        if found is not None and not found.has_error() and found.metadata.src_node_id != node:
            return None, "a reply of another node"
        return found, problem

    def record_problem(self, number: int, client: int, problem: str) -> None:
        """Report that a reply does not count.

        The server writes the reason to the journal.
        """
        self.say(f"round {number}: client {client} counts as a zero update: {problem}")
        with self._journal.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"round": number, "client": client, "problem": problem}) + "\n")


CURRENT_EXCHANGE: ContextVar[Exchange | None] = ContextVar(
    "the federation that engines of this context train on", default=None
)


def check_reply(order: TrainingOrder, message: Message, client: Clients) -> tuple[Tensor | None, str]:
    """Return (update, "") for a valid reply, or (None, problem)."""
    try:
        update = read_update(order, message)
        check_update_bound(update, order.starts, client)
    except MalformedMessage as error:
        return None, str(error)
    except Exception as error:  # a hostile reply may raise anything inside Flower
        return None, f"something unreadable, {type(error).__name__}"
    return update, ""


def check_update_bound(update: Tensor, starts: Tensor, client: Clients) -> None:
    """Raise `MalformedMessage` if training by the protocol cannot have produced the update."""
    bound = float(client.update_bound[0])
    if bound == float("inf"):
        return
    lost = 1.0 - float(client.retention[0])
    steps = int(client.steps[0])
    rounding = STEP_BOUND_SLACK[update.dtype]
    start = torch.linalg.vector_norm(starts, dim=1).double()
    residual = torch.linalg.vector_norm(update + lost * starts, dim=1).double()
    allowed = bound + rounding * (bound + lost * start) / 2 + steps * torch.finfo(update.dtype).eps * start / 2
    if bool((residual > allowed).any()):
        raise MalformedMessage(f"an update of norm {float(residual.max()):.4g}, the protocol allows {bound:.4g}")
