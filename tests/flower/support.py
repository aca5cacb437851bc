"""Federations for tests: a grid without a network, and nodes that misbehave."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from crfl_flower.bounded_grid import ReplyTooLarge
from crfl_flower.client_app import NODE_FILE_KEY, app
from crfl_flower.exchange import CURRENT_EXCHANGE, Exchange
from crfl_flower.federation_setup import write_federation
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from crfl_core import RunResult, load_config, run

Answer = Callable[[Message, Context], Message | None]
"""What a node does with a message; None: it never answers."""


def experiment(folder: Path, clients: int = 4, **changes: Any) -> Path:
    """Write a small experiment whose clients each hold a white image, of the largest norm that is declared."""
    digits = load_config({"dataset": {"type": "digits", "train_samples": 80, "test_samples": 40}}).config.dataset.load()
    white = np.ones((clients, 64), np.float32)
    x, y = np.concatenate([digits.x, white]), np.concatenate([digits.y, np.arange(clients) % 10])
    owner = np.concatenate([np.arange(80) * 7 % clients, np.arange(clients)])
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "digits.npz", x=x, y=y, test_x=digits.test_x, test_y=digits.test_y)
    np.savez(folder / "owners.npz", client=owner)
    tree: dict[str, Any] = {
        "name": "federated",
        "rounds": 2,
        "seed": 7,
        "seeds": {"batches": 11},
        "device": "cpu",
        "dataset": {
            "type": "arrays",
            "path": str(folder / "digits.npz"),
            "domain": [0.0, 1.0],
            "class_names": [str(number) for number in range(10)],
        },
        "partition": {"type": "file", "path": str(folder / "owners.npz")},
        "model": {"type": "softmax", "bias": False},
        "training": {"learning_rate": 0.02, "epochs": 1, "batch_size": 8},
        "server": {"noise_std": 0.001, "clip_norm": 20.0},
        "threat": {"clients": 1, "rounds": "every", "poison": "update"},
        "certificates": ["pathwise-linear"],
        "storage": {"figures": []},
        "engine": {"type": "local", "chunk_clients": 1, "threads": 1},
    }
    path = folder / "experiment.toml"
    path.write_text(tomli_w.dumps(tree | changes), encoding="utf-8")
    return path


def founded(folder: Path, config: Path, address: str = "127.0.0.1:9092", **engine: Any) -> Path:
    """Write the config of a server whose nodes are the clients of an experiment."""
    seed = tomllib.loads(config.read_text(encoding="utf-8"))["seed"]
    write_federation(folder, config, address, [f"seed={seed}"])
    path = folder / "server" / "config.toml"
    tree = tomllib.loads(path.read_text(encoding="utf-8"))
    tree["engine"] |= engine
    path.write_text(tomli_w.dumps(tree), encoding="utf-8")
    return path


def honest(message: Message, context: Context) -> Message:
    """Answer as a node that follows the protocol."""
    reply: Message = app(message, context)
    return reply


class LocalGrid:
    """A grid whose nodes answer at once in this process. `nodes[i]` is what the node of client i does."""

    def __init__(self, folder: Path, nodes: Sequence[Answer]) -> None:
        files = sorted(folder.glob("node-*/node.toml"))
        self._contexts = [context(file, client + 100) for client, file in enumerate(files)]
        self._nodes = nodes
        self._replies: dict[str, Message | None] = {}
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1

    def push_messages(self, messages: list[Message]) -> list[str]:
        numbers = []
        for message in messages:
            client = message.metadata.dst_node_id - 100
            number = f"{len(self._replies)}"
            message.metadata.__dict__["_message_id"] = number
            self._replies[number] = self._nodes[client](message, self._contexts[client])
            numbers.append(number)
        return numbers

    def expect_replies(self, limit: int) -> None: ...

    def drop(self, message_id: str) -> None: ...

    def pull_reply(self, message_id: str, limit: int) -> Message | None:
        reply = self._replies[message_id]
        if reply is not None and size_of(reply) > limit:
            raise ReplyTooLarge
        return reply


def context(file: Path, node: int) -> Context:
    """Return what Flower tells the app of a node."""
    return Context(run_id=1, node_id=node, node_config={NODE_FILE_KEY: str(file)}, state=RecordDict(), run_config={})


def size_of(message: Message) -> int:
    """Count the bytes of all arrays of a reply."""
    if message.has_error():
        return 0
    return sum(len(array.data) for record in message.content.array_records.values() for array in record.values())


def federated(
    config: Path, nodes: Sequence[Answer], out: Path, grid: type[LocalGrid] = LocalGrid, **changes: Any
) -> RunResult:
    """Run a server whose nodes are in this process."""
    folder = config.parent.parent
    exchange = Exchange(grid(folder, nodes), [100 + client for client in range(len(nodes))], out.parent / "journal")
    samples = [len(np.load(file)["y"]) for file in sorted(folder.glob("node-*/samples.npz"))]
    token = CURRENT_EXCHANGE.set(exchange)
    try:
        overrides = [f"partition.samples={samples}", *(f"{key}={value}" for key, value in changes.items())]
        return run(config, overrides=overrides, out=out)
    finally:
        CURRENT_EXCHANGE.reset(token)


def problems(journal: Path) -> Mapping[tuple[int, int], str]:
    """Read from the journal whose reply did not count in which round, and why."""
    import json

    if not journal.exists():
        return {}
    lines = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    return {(line["round"], line["client"]): line["problem"] for line in lines}
