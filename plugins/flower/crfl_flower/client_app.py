"""The client app: what a node makes of a message. `crfl join` runs it, beside the node's own data."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from crfl_flower.node import Node, opened_node
from crfl_flower.registration import Question
from crfl_flower.wire import Order

NODE_FILE = "node-file"
"""Where the configuration of a SuperNode says which file is the node's."""

app = ClientApp()


@app.query()
def register(message: Message, context: Context) -> Message:
    """Say how many samples there are."""
    return replied(message, Question.read(message).answer(node_of(context).data))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train from the server's model."""
    order = Order.read(message)
    return replied(message, order.reply(node_of(context).train(order)))


def replied(message: Message, content: RecordDict) -> Message:
    """The reply to a message."""
    return Message(content, reply_to=message)


def node_of(context: Context) -> Node:
    """The node that a SuperNode was started for."""
    return opened_node(Path(str(context.node_config[NODE_FILE])))
