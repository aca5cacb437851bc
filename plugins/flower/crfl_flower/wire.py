"""What goes over the wire: numbers and texts of known names, and arrays as raw bytes of a stated type and shape.

Nothing is ever unpickled. Whatever comes in is compared with what was asked for, before anybody computes with it.
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

from crfl_core.extend import Clients, LocalUpdates, Poisoning, TrainingTask

RAW = "crfl.raw"
"""The name of the format: numbers one after the other, the lowest byte first."""
TYPES = {torch.float32: "<f4", torch.float64: "<f8"}
Words = dict[str, Any]
"""Numbers and texts by name, as Flower's records hold them."""
OVERHEAD = 64 * 1024
"""What a reply may have besides its numbers, in bytes."""


class Malformed(Exception):
    """A message is not what was asked for; its text says why, in a few words."""


@dataclass(frozen=True)
class Order:
    """One client's part of a round: train from `starts`, (K, P), as the row of `clients` says, and say `token` again.

    `specification` is what both sides need to know to train alike; it names no data. `total` is the number of clients.
    """

    round: int
    token: str
    client: int
    total: int
    specification: str
    row: Mapping[str, float]
    starts: Tensor

    @staticmethod
    def of(task: TrainingTask, place: int, total: int, specification: str, token: str) -> Order:
        """The order for the participant at a place of a round."""
        clients = task.clients
        row = {name: column[place].item() for name, column in vars(clients).items()}
        own = task.starts[:, min(int(clients.group[place]), task.starts.shape[1] - 1)]
        return Order(task.number, token, int(clients.ids[place]), total, specification, row, own)

    def content(self) -> RecordDict:
        """The order as Flower sends it."""
        words: Words = {"round": self.round, "token": self.token, "client": self.client, "total": self.total}
        words["specification"] = self.specification
        return RecordDict(
            {
                "order": ConfigRecord(words),
                "row": ConfigRecord(dict(self.row)),
                "arrays": ArrayRecord({"starts": packed(self.starts)}),
            }
        )

    @staticmethod
    def read(message: Message) -> Order:
        """The order in a message of the server, which a node believes."""
        records = message.content.config_records
        order = records["order"]
        array = message.content.array_records["arrays"]["starts"]
        kind = next((kind for kind, name in TYPES.items() if name == array.dtype), None)
        if kind is None or len(array.shape) != 2:
            raise Malformed(f"starts of type {array.dtype[:20]!r} and shape {array.shape}")
        words: Words = {name: order[name] for name in ("round", "token", "client", "total", "specification")}
        starts = unpacked(array, kind, tuple(array.shape))
        row: Words = dict(records["row"])
        return Order(**words, row=row, starts=starts)

    def task(self) -> TrainingTask:
        """The order as local training takes it: a round of all clients, of which only the own row is ever looked at."""
        kinds = {"learning_rate", "weight_decay", "retention", "update_bound"}
        columns: dict[str, Any] = {
            one.name: np.full(self.total, self.row[one.name], np.float64 if one.name in kinds else np.int64)
            for one in fields(Clients)
        } | {"group": np.zeros(self.total, np.int64)}
        return TrainingTask(self.round, self.starts[:, None], Clients(**columns), attacked=True)

    def reply(self, updates: Tensor) -> RecordDict:
        """The answer, with updates (K, P)."""
        words: Words = {"round": self.round, "token": self.token, "client": self.client}
        return RecordDict({"reply": ConfigRecord(words), "arrays": ArrayRecord({"update": packed(updates)})})

    @property
    def largest_reply(self) -> int:
        """How many bytes a reply can have that is right."""
        return self.starts.numel() * self.starts.element_size() + OVERHEAD


def read_update(order: Order, message: Message) -> Tensor:
    """The updates (K, P) in a reply, finite. Raises `Malformed` if it is no answer to this order."""
    if message.has_error():
        raise Malformed(f"an error, {message.error.reason[:80]!r}" if message.error.reason else "an error")
    records = message.content
    if set(records) != {"reply", "arrays"} or set(records.config_records) != {"reply"}:
        raise Malformed(f"records {sorted(map(str, records))[:4]}")
    said = records.config_records["reply"]
    arrays = records.array_records["arrays"]
    for name, wanted in (("round", order.round), ("client", order.client), ("token", order.token)):
        found = said.get(name)
        if type(found) is not type(wanted) or found != wanted:
            raise Malformed(f"an answer for {name} {str(found)[:40]!r}")
    if set(arrays) != {"update"}:
        raise Malformed(f"arrays {sorted(map(str, arrays))[:4]}")
    update = unpacked(arrays["update"], order.starts.dtype, tuple(order.starts.shape))
    if not bool(torch.isfinite(update).all()):
        raise Malformed("numbers that are not finite")
    return update


def packed(tensor: Tensor) -> Array:
    """A tensor as raw bytes."""
    name = TYPES[tensor.dtype]
    data = np.ascontiguousarray(tensor.detach().cpu().numpy().astype(name, copy=False)).tobytes()
    return Array(dtype=name, shape=tuple(tensor.shape), stype=RAW, data=data)


def unpacked(array: Array, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The tensor of this type and shape that an array says it is. Raises `Malformed` if it is another one."""
    stated = (array.stype, array.dtype, tuple(array.shape))
    if stated != (RAW, TYPES[kind], shape):
        raise Malformed(f"an array of {str(stated)[:80]}, not {(RAW, TYPES[kind], shape)}")
    if len(array.data) != math.prod(shape) * kind.itemsize:
        raise Malformed(f"{len(array.data)} bytes for an array of shape {shape}")
    values = np.frombuffer(array.data, TYPES[kind]).reshape(shape)
    return torch.from_numpy(values.astype(TYPES[kind][1:], copy=True))


def one_update(place: int, updates: Tensor) -> LocalUpdates:
    """What one participant sent, (K, P), as the server takes it. Nobody but itself knows what it trained on."""
    return LocalUpdates(slice(place, place + 1), updates[:, None], Poisoning.none(1))
