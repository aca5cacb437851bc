"""A plain Flower app with clients in NumPy, as people have them: it knows nothing of us."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from crfl_core import load_config

CLIENTS, SAMPLES, RATE = 3, 30, 0.02

app = ClientApp()


def share(client: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The samples of one client."""
    data = load_config({"dataset": {"type": "digits", "train_samples": CLIENTS * SAMPLES}}).config.dataset.load()
    rows = slice(client * SAMPLES, (client + 1) * SAMPLES)
    return np.asarray(data.x[rows], np.float64), data.y[rows]


def trained(weight: NDArray[Any], x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """One step of softmax regression on all samples."""
    logits = x @ weight.T
    chances = np.exp(logits - logits.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    chances[np.arange(len(y)), y] -= 1.0
    stepped: NDArray[Any] = weight - RATE * chances.T @ x / len(y)
    return stepped


@app.train()
def train(message: Message, context: Context) -> Message:
    (arrays,) = message.content.array_records.values()
    (weight,) = (array.numpy() for array in arrays.values())
    x, y = share(int(context.node_config["partition-id"]))
    new = trained(weight.astype(np.float64), x, y).astype(weight.dtype)
    return replied(message, [new], {"num-examples": len(y)})


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    (arrays,) = message.content.array_records.values()
    (weight,) = (array.numpy() for array in arrays.values())
    x, y = share(int(context.node_config["partition-id"]))
    right = float(((x @ weight.T).argmax(1) == y).mean())
    content = RecordDict({"metrics": MetricRecord({"accuracy": right, "num-examples": len(y)})})
    return Message(content, reply_to=message)


def replied(message: Message, arrays: list[NDArray[Any]], metrics: dict[str, Any]) -> Message:
    names = list(next(iter(message.content.array_records.values())))
    record = ArrayRecord({name: Array(array) for name, array in zip(names, arrays, strict=True)})
    return Message(RecordDict({"arrays": record, "metrics": MetricRecord(metrics)}), reply_to=message)
