"""Limits of a reply in Flower's SuperLink: one per order, with a bounded number of parts and of bytes.

Flower stores whatever a node announces, and expands it when the server asks for the reply. A few bytes may announce
millions of parts, so an announcement is checked before Flower stores it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import ObjectTree

from crfl_flower.request_gate import Limits

if TYPE_CHECKING:
    from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
    from flwr.supercore.object_store.in_memory_object_store import ObjectEntry

PIECE_BYTES = 2**20
"""Bytes per announced part that a reply must have, beyond a few parts. Flower cuts arrays into pieces of 5 MB."""
FEW_PARTS = 32
"""Parts that a reply of any size may have; that of an honest node has six and its pieces."""
GRACE_SECONDS = 600.0
"""Seconds that Flower keeps an order beyond its deadline, in which the server takes the replies that came in time."""
UPLOADS = 2
"""Times that a node may send the bytes of a reply: a request may be repeated after a failure."""

Push = Callable[[PushMessagesRequest, "InMemoryLinkState"], PushMessagesResponse]


def limit_parts(reply_bytes: int) -> int:
    """Return how many parts a reply of this size may have."""
    return FEW_PARTS + reply_bytes // PIECE_BYTES


def limit_replies(push: Push, limits: Limits) -> Push:
    """Restrict Flower's handler for announced replies.

    The new handler accepts one reply per order, and only what `limits` allow. A reply that is refused is never stored,
    and the server counts it as missing. Whether a reply is in time is decided here, when its announcement and its parts
    arrive, so it does not depend on how long the server is busy with replies of other nodes. What the node announced
    for its previous order is deleted.
    """

    def push_limited(request: PushMessagesRequest, state: InMemoryLinkState) -> PushMessagesResponse:
        refused = PushMessagesResponse()
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1 or limits.reply_bytes is None:
            return refused
        metadata = request.messages_list[0].metadata
        (tree,) = request.message_object_trees
        order = state.message_ins_store.get(metadata.reply_to_message_id)
        node = request.node.node_id
        known = state.nodes.get(node)
        if order is None or known is None or metadata.message_id != tree.object_id:
            return refused
        if metadata.src_node_id != node or order.metadata.dst_node_id != node:
            return refused
        deadline = order.metadata.created_at + order.metadata.ttl - GRACE_SECONDS
        if time.time() > deadline:
            return refused
        quota = limits.quota(known.public_key)
        store = state.object_store
        stored: Mapping[str, ObjectEntry] = vars(store)["store"]
        repeated = quota.reply == tree.object_id
        if not repeated:
            store.delete(quota.reply)  # the server is done with it, or it would not have sent another order
        if not repeated and tree.object_id in stored:
            return refused
        if not is_bounded(tree, stored, limit_parts(limits.reply_bytes)):
            return refused
        response = push(request, state)
        if response.objects_to_push and not repeated:
            store.delete(metadata.reply_to_message_id)  # the order, which a node may never have confirmed
            quota.reply = tree.object_id
            quota.bytes_left = UPLOADS * limits.reply_bytes
            quota.deadline = deadline
        return response

    return push_limited


def is_bounded(tree: ObjectTree, stored: Mapping[str, ObjectEntry], most: int) -> bool:
    """Return whether a tree has at most `most` parts.

    This must also hold after Flower has expanded it. Flower keeps the children of a part by name and expands all of
    them. So a part that is named twice, or is stored already, must name the same children each time.
    """
    children: dict[str, list[str]] = {}
    waiting = [tree]
    parts = 0
    while waiting:
        part = waiting.pop()
        parts += 1
        names = [child.object_id for child in part.children]
        entry = stored.get(part.object_id)
        if parts > most or (entry is not None and names != entry.child_object_ids):
            return False
        if names != children.setdefault(part.object_id, names):
            return False
        waiting += part.children
    return True
