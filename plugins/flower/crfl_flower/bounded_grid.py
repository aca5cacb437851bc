"""A Flower grid that reads a limited number of bytes per reply."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
from flwr.app import Array, Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_children_ids_from_object_content,
    get_object_type_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid import HttpGrid

from crfl_flower.reply_limits import limit_parts
from crfl_flower.request_gate import REPLY_BYTES_HEADER, SECRET_HEADER

REFUSED_STATUSES = (401, 403)
"""HTTP statuses that refuse this server, not one reply."""
POLL_SECONDS = 0.2
"""Seconds between two polls for replies."""


class ReplyTooLarge(Exception):
    """Raised when a reply is larger than allowed. The rest of the reply is not read."""


class ReplyGrid(Protocol):
    """The methods of a grid that an exchange uses."""

    def push_messages(self, messages: list[Message]) -> Any:
        """Send messages and return their ids."""

    def expect_replies(self, limit: int) -> None:
        """State how many bytes a reply may have, before messages are sent."""

    def pull_reply(self, message_id: str, limit: int) -> Message | None:
        """Return the reply to a message, or None.

        Raises `ReplyTooLarge`, and any other exception if the reply is malformed.
        """

    def drop(self, message_id: str) -> None:
        """Forget a message without a good reply in time.

        The grid also forgets what has arrived of the reply.
        """


def read_reply(grid: ReplyGrid, message_id: str, limit: int) -> tuple[Message | None, str]:
    """Read the reply to a message, if it has arrived.

    Return (reply, ""), (None, problem), or (None, "") if the reply has not arrived yet. Raises `httpx.HTTPError` only
    if Flower's SuperLink does not answer or refuses this server, whatever a node sent.
    """
    try:
        return grid.pull_reply(message_id, limit), ""
    except ReplyTooLarge:
        return None, f"a reply of more than {limit:,} bytes"
    except httpx.TransportError:
        raise
    except httpx.HTTPStatusError as error:
        if error.response.status_code in REFUSED_STATUSES:
            raise
        return None, f"a reply that Flower does not hand out, status {error.response.status_code}"
    except Exception as error:  # a hostile reply may raise anything inside Flower
        return None, f"something unreadable, {type(error).__name__}"


@dataclass
class ArrivingReply:
    """A reply whose parts arrive one by one: its number, the parts that are missing, and the contents of the others."""

    number: str
    missing: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)


class BoundedGrid(HttpGrid):
    """Grid that reads a limited number of bytes per reply.

    With `secret`, the grid passes the gate of the SuperLink that `crfl federation serve` starts. `reply_bytes` limits
    the replies that `send_and_receive` reads.
    """

    def __init__(self, *arguments: Any, secret: bytes = b"", reply_bytes: int = 0, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._secret = secret
        self._reply_bytes = reply_bytes
        self._arriving: dict[str, ArrivingReply] = {}

    @property
    def token(self) -> str:
        """Return the token with which the task of this grid was claimed."""
        return self._token

    def _connect(self) -> None:
        super()._connect()
        if self._secret and self._client is not None:
            self._client._client.headers[SECRET_HEADER] = self._secret.hex()

    def expect_replies(self, limit: int) -> None:
        """Tell the gate how large a reply may be.

        Every request from now on states the limit.
        """
        if self._secret:
            self._runtime_client._client.headers[REPLY_BYTES_HEADER] = str(limit)

    def pull_reply(self, message_id: str, limit: int) -> Message | None:
        """Return the complete reply to a message, or None.

        The result is None if the reply has not arrived yet. Raises `ReplyTooLarge` if the reply has more than `limit`
        bytes, and any other exception if it is malformed.
        """
        client = self._runtime_client
        with limit_responses(client, limit):
            if message_id not in self._arriving:  # Flower hands a reply out once
                found = client.PullMessages(PullAppMessagesRequest(message_ids=[message_id]))
                if not found.messages_list:
                    return None
                parts = [part.object_id for part in iterate_object_tree(found.message_object_trees[0])]
                self._arriving[message_id] = ArrivingReply(found.messages_list[0].metadata.message_id, parts)
            reply = self._arriving[message_id]
            try:
                complete = self._pull_parts(client, reply, limit)
            except httpx.TransportError:
                raise
            except Exception:
                self._drop_reply(message_id)
                raise
        if not complete:
            return None
        self._drop_reply(message_id)
        message = inflate_object_from_contents(reply.number, reply.contents)
        if not isinstance(message, Message):
            raise TypeError(f"a {type(message).__name__} instead of a message")
        return message

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and return the replies.

        Replies that arrive late or cannot be read are left out.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        waiting = {number for number in self.push_messages(messages) if number}
        replies = []
        while waiting:
            last = time.monotonic() >= until
            for number in sorted(waiting):
                found, problem = read_reply(self, number, self._reply_bytes)
                replies += [] if found is None else [found]
                if found is not None or problem:
                    waiting.remove(number)
                if problem or (found is not None and found.has_error()):
                    self.drop(number)
            if waiting and not last:
                time.sleep(POLL_SECONDS)
            elif last:
                break
        for number in waiting:
            self.drop(number)
        return replies

    def drop(self, message_id: str) -> None:
        """Let Flower forget a message without a good reply in time.

        Flower also forgets what has arrived of the reply. A node that is away, or hostile, has not confirmed the
        message, so Flower would keep it until the end of the run.
        """
        self._drop_reply(message_id)
        self._confirm(message_id)

    def _drop_reply(self, message_id: str) -> None:
        reply = self._arriving.pop(message_id, None)
        if reply is not None:
            self._confirm(reply.number)

    def _confirm(self, number: str) -> None:
        """Confirm a message, upon which Flower deletes it."""
        confirmed = ConfirmMessageReceivedRequest(node=self.node, run_id=self.run.run_id, message_object_id=number)
        with suppress(httpx.HTTPStatusError):  # what is wrong with this message must not end the run
            self._runtime_client.ConfirmMessageReceived(confirmed)

    def _pull_parts(self, client: RuntimeHttpClient, reply: ArrivingReply, limit: int) -> bool:
        """Pull the parts that have arrived; return whether the reply is complete."""
        if len(reply.missing) + len(reply.contents) > limit_parts(limit):
            raise ReplyTooLarge
        while reply.missing:
            part = reply.missing[0]
            answer = client.PullObject(PullObjectRequest(node=self.node, run_id=self.run.run_id, object_id=part))
            if not (answer.object_found and answer.object_available):
                return False
            reply.contents[part] = answer.object_content
            del reply.missing[0]
            if sum(map(len, reply.contents.values())) > limit:
                raise ReplyTooLarge
        if sum(size_after_inflation(content, reply.contents) for content in reply.contents.values()) > limit:
            raise ReplyTooLarge
        return True


def bound_grid(grid: HttpGrid, reply_bytes: int = 0) -> BoundedGrid:
    """Return a grid that limits the size of replies.

    It has the same connection and run.
    """
    other = BoundedGrid(
        grid._addr,
        insecure=grid._insecure,
        root_certificates=grid._cert,
        token=grid._token,
        reply_bytes=reply_bytes,
    )
    other.set_run(grid.run)
    return other


def size_after_inflation(content: bytes, others: Mapping[str, bytes]) -> int:
    """Return the number of bytes of an array after inflation.

    An array may name the same piece many times, so a short message can inflate to a large one.
    """
    if get_object_type_from_object_content(content) != Array.__qualname__:
        return 0
    pieces = get_object_children_ids_from_object_content(content)
    places = json.loads(get_object_body(content, Array))["arraychunk_ids"]
    return sum(len(others[pieces[place]]) for place in places)


@contextmanager
def limit_responses(client: RuntimeHttpClient, limit: int) -> Iterator[None]:
    """Refuse responses that announce more than `limit` bytes, inside the block."""

    def check(response: httpx.Response) -> None:
        if int(response.headers.get("content-length", 0)) > limit:
            raise ReplyTooLarge

    hooks = client._client.event_hooks
    client._client.event_hooks = {"response": [check]}
    try:
        yield
    finally:
        client._client.event_hooks = hooks
