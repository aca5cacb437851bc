"""Messages between server and nodes: named values, and arrays as raw bytes of stated type and shape.

Nothing is ever unpickled. The receiver compares every message with what it asked for before it computes with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from crfl_core.errors import DataError
from crfl_core.records.inputs import Data
from crfl_core.records.round import BatchMeasurements, Clients, LocalUpdates, TrainingTask

RAW_FORMAT = "crfl.raw"
"""Name of the array format: numbers in sequence, little-endian."""
DTYPE_CODES = {torch.float32: "<f4", torch.float64: "<f8"}
Values = dict[str, Any]
"""Numbers and texts by name, as in Flower's records."""
OVERHEAD_BYTES = 64 * 1024
"""Bytes that a reply may have in addition to its numbers."""


class MalformedMessage(Exception):
    """Raised when a message is not what was asked for; its text is the reason in a few words."""


@dataclass(frozen=True)
class TrainingOrder:
    """One client's part of a round: train from `starts` (K, P) as `row` says.

    `origin`, (1, P), is the model toward which weight decay pulls, None if it pulls toward 0. The reply repeats
    `token`. `specification` is what both sides need to train alike; it names no data. `total` is the number of clients.
    """

    round: int
    token: str
    client: int
    total: int
    specification: str
    row: Mapping[str, float]
    starts: Tensor
    origin: Tensor | None = None

    @staticmethod
    def for_participant(task: TrainingTask, place: int, total: int, specification: str, token: str) -> TrainingOrder:
        """Return the order for the participant at a place of a round."""
        clients = task.clients
        row = {name: column[place].item() for name, column in vars(clients).items()}
        group = min(int(clients.group[place]), task.starts.shape[1] - 1)
        own = task.starts[:, group]
        origin = None if task.origins is None else task.origins[:, group]
        return TrainingOrder(task.number, token, int(clients.ids[place]), total, specification, row, own, origin)

    def to_record(self) -> RecordDict:
        """Return the order as a Flower record."""
        words: Values = {"round": self.round, "token": self.token, "client": self.client, "total": self.total}
        words["specification"] = self.specification
        arrays = {"starts": array_from_tensor(self.starts)}
        if self.origin is not None:
            arrays["origin"] = array_from_tensor(self.origin)
        return RecordDict(
            {"order": ConfigRecord(words), "row": ConfigRecord(dict(self.row)), "arrays": ArrayRecord(arrays)}
        )

    @staticmethod
    def from_message(message: Message) -> TrainingOrder:
        """Return the order in a message of the server.

        The node trusts the server.
        """
        records = message.content.config_records
        order = records["order"]
        arrays = message.content.array_records["arrays"]
        array = arrays["starts"]
        kind = next((kind for kind, name in DTYPE_CODES.items() if name == array.dtype), None)
        if kind is None or len(array.shape) != 2:
            raise MalformedMessage(f"starts of type {array.dtype[:20]!r} and shape {array.shape}")
        words: Values = {name: order[name] for name in ("round", "token", "client", "total", "specification")}
        starts = tensor_from_array(array, kind, tuple(array.shape))
        row: Values = dict(records["row"])
        has_origin = "origin" in arrays
        origin = tensor_from_array(arrays["origin"], kind, (1, array.shape[1])) if has_origin else None
        return TrainingOrder(**words, row=row, starts=starts, origin=origin)

    def to_task(self) -> TrainingTask:
        """Return the order as a task of local training.

        The task uses only this client's row.
        """
        kinds = {"learning_rate", "weight_decay", "retention", "update_bound"}
        columns: dict[str, Any] = {
            one.name: np.full(self.total, self.row[one.name], np.float64 if one.name in kinds else np.int64)
            for one in fields(Clients)
        } | {"group": np.zeros(self.total, np.int64)}
        origins = None if self.origin is None else self.origin[:, None]
        return TrainingTask(self.round, self.starts[:, None], Clients(**columns), attacked=True, origins=origins)

    def build_reply(self, updates: Tensor) -> RecordDict:
        """Return the reply with updates (K, P)."""
        words: Values = {"round": self.round, "token": self.token, "client": self.client}
        return RecordDict({"reply": ConfigRecord(words), "arrays": ArrayRecord({"update": array_from_tensor(updates)})})

    @property
    def max_reply_bytes(self) -> int:
        """Return the largest size of a valid reply, in bytes."""
        return self.starts.numel() * self.starts.element_size() + OVERHEAD_BYTES


def read_update(order: TrainingOrder, message: Message) -> Tensor:
    """Return the finite updates (K, P) in a reply.

    Raises `MalformedMessage` if the reply does not answer this order.
    """
    if message.has_error():
        raise MalformedMessage(f"an error, {message.error.reason[:80]!r}" if message.error.reason else "an error")
    records = message.content
    if set(records) != {"reply", "arrays"} or set(records.config_records) != {"reply"}:
        raise MalformedMessage(f"records {sorted(map(str, records))[:4]}")
    said = records.config_records["reply"]
    arrays = records.array_records["arrays"]
    for name, wanted in (("round", order.round), ("client", order.client), ("token", order.token)):
        found = said.get(name)
        if type(found) is not type(wanted) or found != wanted:
            raise MalformedMessage(f"an answer for {name} {str(found)[:40]!r}")
    if set(arrays) != {"update"}:
        raise MalformedMessage(f"arrays {sorted(map(str, arrays))[:4]}")
    update = tensor_from_array(arrays["update"], order.starts.dtype, tuple(order.starts.shape))
    if not bool(torch.isfinite(update).all()):
        raise MalformedMessage("numbers that are not finite")
    return update


def array_from_tensor(tensor: Tensor) -> Array:
    """Return a tensor as an array of raw bytes."""
    name = DTYPE_CODES[tensor.dtype]
    data = np.ascontiguousarray(tensor.detach().cpu().numpy().astype(name, copy=False)).tobytes()
    return Array(dtype=name, shape=tuple(tensor.shape), stype=RAW_FORMAT, data=data)


def tensor_from_array(array: Array, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor in an array.

    Raises `MalformedMessage` if the type or shape is not the stated one.
    """
    stated = (array.stype, array.dtype, tuple(array.shape))
    if stated != (RAW_FORMAT, DTYPE_CODES[kind], shape):
        raise MalformedMessage(f"an array of {str(stated)[:80]}, not {(RAW_FORMAT, DTYPE_CODES[kind], shape)}")
    if len(array.data) != math.prod(shape) * kind.itemsize:
        raise MalformedMessage(f"{len(array.data)} bytes for an array of shape {shape}")
    values = np.frombuffer(array.data, DTYPE_CODES[kind]).reshape(shape)
    return torch.from_numpy(values.astype(DTYPE_CODES[kind][1:], copy=True))


def local_update(place: int, updates: Tensor) -> LocalUpdates:
    """Return one participant's updates (K, P) as the server's aggregation takes them."""
    return LocalUpdates(slice(place, place + 1), updates[:, None], BatchMeasurements.clean(1))


@dataclass(frozen=True)
class RegistrationRequest:
    """Description of the server's inputs, which a node compares with its own before it registers."""

    client: int
    token: str
    inputs: int
    classes: tuple[str, ...]
    domain: tuple[float, float]
    scaling: str
    max_samples: int

    @staticmethod
    def for_client(data: Data, client: int, token: str, max_samples: int) -> RegistrationRequest:
        """Return the request to one client; `data` are the server's."""
        domain = data.domain.low, data.domain.high
        return RegistrationRequest(
            client, token, data.test_x.shape[1], data.class_names, domain, describe_scaling(data), max_samples
        )

    def to_record(self) -> RecordDict:
        """Return the request as a Flower record."""
        words = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        return RecordDict({"question": ConfigRecord(words)})

    @staticmethod
    def from_message(message: Message) -> RegistrationRequest:
        """Return the request in a message of the server."""
        words: Values = dict(message.content.config_records["question"])
        words |= {name: tuple(value) for name, value in words.items() if isinstance(value, list)}
        return RegistrationRequest(**words)

    def build_reply(self, data: Data) -> RecordDict:
        """Return the reply of a node with these data.

        Raises `DataError` if the data do not match the server's.
        """
        for what, own, theirs in (
            ("features", data.x.shape[1], self.inputs),
            ("classes", data.class_names, self.classes),
            ("domain", (data.domain.low, data.domain.high), self.domain),
            ("scaling", describe_scaling(data), self.scaling),
        ):
            if own != theirs:
                raise DataError(f"samples of this node have {what} {own}, the server says {theirs}: read them alike")
        words: Values = {"client": self.client, "token": self.token, "samples": min(len(data.x), self.max_samples)}
        return RecordDict({"answer": ConfigRecord(words)})


def describe_scaling(data: Data) -> str:
    """Return how inputs were scaled.

    The text is "public" for fixed constants, else the values that were fitted to data.
    """
    scaling = data.scaling
    return f"{scaling.kind} {scaling.shift.tolist()} {scaling.factor.tolist()}" if scaling.fitted else "public"


def read_samples(question: RegistrationRequest, message: Message) -> int:
    """Return the number of samples in a reply, capped.

    Raises `MalformedMessage` if the reply does not answer this request.
    """
    if message.has_error():
        raise MalformedMessage(f"an error, {(message.error.reason or '')[:80]!r}")
    if set(message.content) != {"answer"} or set(message.content.config_records) != {"answer"}:
        raise MalformedMessage(f"records {sorted(map(str, message.content))[:4]}")
    said = message.content.config_records["answer"]
    if said.get("client") != question.client or said.get("token") != question.token:
        raise MalformedMessage(f"an answer for client {str(said.get('client'))[:40]!r}")
    samples = said.get("samples")
    if type(samples) is not int or samples < 1:
        raise MalformedMessage(f"{str(samples)[:40]!r} samples")
    return min(samples, question.max_samples)
