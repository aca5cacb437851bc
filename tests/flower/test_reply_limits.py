"""Limits of a reply in the SuperLink: how many parts a node may announce, and for which order."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from crfl_flower.reply_limits import FEW_PARTS, GRACE_SECONDS, is_bounded, limit_replies
from crfl_flower.request_gate import Limits
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node

ORDER, NODE = "order", 7


def tree(name: str, *children: ObjectTree) -> ObjectTree:
    return ObjectTree(object_id=name, children=children)


def stored(**children: list[str]) -> Any:
    return {name: SimpleNamespace(child_object_ids=names) for name, names in children.items()}


def test_an_announcement_has_a_bounded_number_of_parts() -> None:
    parts = [tree(f"part {number}") for number in range(FEW_PARTS)]
    assert is_bounded(tree("reply", *parts[:-1]), {}, FEW_PARTS)
    assert not is_bounded(tree("reply", *parts), {}, FEW_PARTS)
    assert is_bounded(tree("reply", parts[0], parts[0]), stored(**{"part 0": []}), FEW_PARTS)


def test_a_few_names_do_not_unfold_to_many_parts() -> None:
    """Flower keeps children by name: `a` would have two `b`, each with two `c`, and so on."""
    unfolding = tree("a", tree("b", tree("c", tree("d"), tree("d")), tree("c")), tree("b"))
    assert not is_bounded(unfolding, {}, FEW_PARTS)
    assert not is_bounded(tree("a", tree("b")), stored(b=["c", "c"]), FEW_PARTS)
    assert not is_bounded(tree("a", tree("b", tree("c"))), stored(b=["d"]), FEW_PARTS)
    assert not is_bounded(tree("a", tree("a")), {}, FEW_PARTS)


class Store:
    """The store of Flower, as far as a reply needs it."""

    def __init__(self) -> None:
        self.store = stored(**{ORDER: []})
        self.deleted: list[str] = []

    def delete(self, name: str) -> None:
        self.deleted.append(name)


@pytest.fixture
def state() -> Any:
    order = SimpleNamespace(metadata=SimpleNamespace(dst_node_id=NODE, created_at=time.time(), ttl=GRACE_SECONDS + 60))
    node = SimpleNamespace(public_key=b"key")
    return SimpleNamespace(message_ins_store={ORDER: order}, nodes={NODE: node, 8: node}, object_store=Store())


def announcement(name: str = "reply", **changes: Any) -> PushMessagesRequest:
    said: dict[str, Any] = {"message_id": name, "src_node_id": NODE, "reply_to_message_id": ORDER} | changes
    message = Message(metadata=Metadata(**said))
    return PushMessagesRequest(
        node=Node(node_id=NODE), messages_list=[message], message_object_trees=[tree(name, tree("part"))]
    )


def push(state: Any, limits: Limits, request: PushMessagesRequest) -> list[str]:
    """What the SuperLink asks a node to send after its announcement."""

    def flower(request: PushMessagesRequest, _: Any) -> PushMessagesResponse:
        (announced,) = request.message_object_trees
        return PushMessagesResponse(objects_to_push=[announced.object_id])

    return list(limit_replies(cast(Any, flower), limits)(request, state).objects_to_push)


@pytest.mark.parametrize(
    "request_",
    [
        announcement(reply_to_message_id="unknown"),
        announcement(src_node_id=8),
        announcement(message_id="another"),
        announcement(ORDER),
        PushMessagesRequest(node=Node(node_id=NODE)),
        PushMessagesRequest(node=Node(node_id=8), messages_list=announcement().messages_list),
    ],
    ids=["no order", "another sender", "another name", "the order itself", "nothing", "no parts"],
)
def test_what_answers_no_order_is_not_stored(state: Any, request_: PushMessagesRequest) -> None:
    limits = Limits(reply_bytes=1000)
    assert push(state, limits, request_) == []
    assert limits.quota(b"key").bytes_left == 0


def test_a_reply_opens_a_quota_once_and_replaces_the_one_before(state: Any) -> None:
    limits = Limits(reply_bytes=1000)
    assert push(state, limits, announcement()) == ["reply"]
    quota = limits.quota(b"key")
    assert quota.bytes_left == 2000
    quota.bytes_left = 5
    assert push(state, limits, announcement()) == ["reply"]  # the same again, after an answer got lost
    assert quota.bytes_left == 5
    assert push(state, limits, announcement("next")) == ["next"]
    assert quota.bytes_left == 2000
    assert state.object_store.deleted == ["", ORDER, "reply", ORDER]


def test_a_reply_that_is_announced_after_the_deadline_is_not_stored(state: Any) -> None:
    limits = Limits(reply_bytes=1000)
    state.message_ins_store[ORDER].metadata.ttl = GRACE_SECONDS - 1
    assert push(state, limits, announcement()) == []
    state.message_ins_store[ORDER].metadata.ttl = GRACE_SECONDS + 30
    assert push(state, limits, announcement()) == ["reply"]
    assert 25 < limits.quota(b"key").deadline - time.time() < 35


def test_no_reply_is_stored_before_the_server_says_how_large_it_may_be(state: Any) -> None:
    assert push(state, Limits(), announcement()) == []
