"""A Flower grid that reads a limited number of bytes per reply."""

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
"""Limit of parts per reply. Flower cuts arrays into pieces of 5 MB; replies of honest nodes have far fewer parts."""


class ReplyTooLarge(Exception):
    """Raised when a reply is larger than allowed. The rest of the reply is not read."""


class BoundedGrid(HttpGrid):
    """Grid that reads a limited number of bytes per reply."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._arriving: dict[str, tuple[str, ObjectTree]] = {}

    @property
    def token(self) -> str:
        """Return the token with which the task of this grid was claimed."""
        return self._token

    def pull_reply(self, message_id: str, limit: int) -> Message | None:
        """Return the complete reply to a message, or None if it has not arrived yet.

        Raises `ReplyTooLarge` if the reply has more than `limit` bytes.
        """
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
        if sum(size_after_inflation(content, contents) for content in contents.values()) > limit:
            raise ReplyTooLarge
        return contents


def bound_grid(grid: HttpGrid) -> BoundedGrid:
    """Return a grid with the same connection and run that limits the size of replies."""
    other = BoundedGrid(grid._addr, insecure=grid._insecure, root_certificates=grid._cert, token=grid._token)
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
