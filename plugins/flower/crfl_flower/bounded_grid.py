"""A grid of Flower that reads no more of a reply than it is allowed to, whatever a node sends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
from flwr.app import Array, Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
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

MAX_OBJECTS = 4096
"""No reply of ours has as many parts; Flower cuts arrays into pieces of 5 MB."""


class ReplyTooLarge(Exception):
    """A reply has more bytes than it may have. The rest of it was not read."""


class BoundedGrid(HttpGrid):
    """A grid that reads no more of a reply than it is allowed to."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._arriving: dict[str, tuple[str, ObjectTree]] = {}

    @property
    def token(self) -> str:
        """What the task of this grid was claimed with."""
        return self._token

    def pull_reply(self, message_id: str, limit: int) -> Message | None:
        """The reply to a message; None if it is not there yet, or not whole. Raises `TooLarge`, whatever it says."""
        client = self._runtime_client
        with limit_responses(client, limit):
            if message_id not in self._arriving:  # Flower hands a reply out once
                found = client.PullMessages(PullAppMessagesRequest(message_ids=[message_id]))
                if not found.messages_list:
                    return None
                self._arriving[message_id] = found.messages_list[0].metadata.message_id, found.message_object_trees[0]
            reply, tree = self._arriving[message_id]
            contents = self._pull_contents(client, tree, limit)
        if contents is None:
            return None
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=self.run.run_id, message_object_id=reply)
        )
        del self._arriving[message_id]
        message = inflate_object_from_contents(reply, contents)
        if not isinstance(message, Message):
            raise TypeError(f"a {type(message).__name__} instead of a message")
        return message

    def _pull_contents(self, client: RuntimeHttpClient, tree: ObjectTree, limit: int) -> dict[str, bytes] | None:
        contents: dict[str, bytes] = {}
        for one in iterate_object_tree(tree):
            request = PullObjectRequest(node=self.node, run_id=self.run.run_id, object_id=one.object_id)
            answer = client.PullObject(request)
            if not (answer.object_found and answer.object_available):
                return None
            contents[one.object_id] = answer.object_content
            if len(contents) > MAX_OBJECTS or sum(map(len, contents.values())) > limit:
                raise ReplyTooLarge
        if sum(inflated_size(content, contents) for content in contents.values()) > limit:
            raise ReplyTooLarge
        return contents


def bound_grid(grid: HttpGrid) -> BoundedGrid:
    """The same grid, with replies of bounded size."""
    other = BoundedGrid(grid._addr, insecure=grid._insecure, root_certificates=grid._cert, token=grid._token)
    other.set_run(grid.run)
    return other


def inflated_size(content: bytes, others: Mapping[str, bytes]) -> int:
    """How long an array becomes: it may name the same piece many times, so that little is sent for much."""
    if get_object_type_from_object_content(content) != Array.__qualname__:
        return 0
    pieces = get_object_children_ids_from_object_content(content)
    places = json.loads(get_object_body(content, Array))["arraychunk_ids"]
    return sum(len(others[pieces[place]]) for place in places)


@contextmanager
def limit_responses(client: RuntimeHttpClient, limit: int) -> Iterator[None]:
    """Read no answer that says it has more bytes than this."""

    def check(response: httpx.Response) -> None:
        if int(response.headers.get("content-length", 0)) > limit:
            raise ReplyTooLarge

    hooks = client._client.event_hooks
    client._client.event_hooks = {"response": [check]}
    try:
        yield
    finally:
        client._client.event_hooks = hooks
