"""Replies that do not count: each is a zero update that keeps its weight, and the ledger and the journal tell."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_flower.client_app import find_node
from crfl_flower.messages import RAW_FORMAT, TrainingOrder, array_from_tensor
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

from crfl_core.extend import RunError
from tests.flower.support import Answer, experiment, federated, founded, honest, problems


class Bomb:
    """Whoever unpickles it is told."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return Path("exploded").touch, ()  # type: ignore[return-value]


def changed(change: Callable[[TrainingOrder, RecordDict], RecordDict | None]) -> Answer:
    """A node that trains as it should and then sends something else."""

    def answer(message: Message, context: Context) -> Message | None:
        if message.metadata.message_type != "train":
            return honest(message, context)
        order = TrainingOrder.from_message(message)
        content = change(order, order.build_reply(find_node(context).train(order)))
        return None if content is None else Message(content, reply_to=message)

    return answer


def raises(message: Message, context: Context) -> Message:
    return Message(Error(code=1, reason="ZeroDivisionError"), reply_to=message)


def saying(**words: Any) -> Callable[[TrainingOrder, RecordDict], RecordDict]:
    def change(_: TrainingOrder, content: RecordDict) -> RecordDict:
        said = dict(content.config_records["reply"]) | words
        return RecordDict({**content, "reply": ConfigRecord(said)})

    return change


def sending(make: Callable[[TrainingOrder], ArrayRecord]) -> Callable[[TrainingOrder, RecordDict], RecordDict]:
    return lambda order, content: RecordDict({**content, "arrays": make(order)})


def raw(order: TrainingOrder, data: bytes, kind: str = "<f4", shape: tuple[int, ...] | None = None) -> ArrayRecord:
    shape = tuple(order.starts.shape) if shape is None else shape
    return ArrayRecord({"update": Array(dtype=kind, shape=shape, stype=RAW_FORMAT, data=data)})


BAD: dict[str, tuple[Answer, str]] = {
    "raises": (raises, "an error, 'ZeroDivisionError'"),
    "old round": (changed(saying(round=0)), "an answer for round '0'"),
    "another client": (changed(saying(client=0)), "an answer for client '0'"),
    "old token": (changed(saying(token="0" * 32)), "an answer for token"),
    "a truth for a number": (changed(saying(round=True)), "an answer for round 'True'"),
    "other records": (changed(lambda *_: RecordDict({"model": ConfigRecord({"x": 1})})), r"records \['model'\]"),
    "other names": (
        changed(sending(lambda order: ArrayRecord({"weights": array_from_tensor(order.starts)}))),
        r"arrays \['weights'\]",
    ),
    "not finite": (
        changed(sending(lambda order: ArrayRecord({"update": array_from_tensor(order.starts * torch.nan)}))),
        "numbers that are not finite",
    ),
    "wrong shape": (
        changed(sending(lambda order: ArrayRecord({"update": array_from_tensor(order.starts[:, 1:])}))),
        r"an array of \('crfl.raw', '<f4', \(1, 639\)\), not",
    ),
    "wrong type": (
        changed(sending(lambda order: ArrayRecord({"update": array_from_tensor(order.starts.double())}))),
        "'<f8'",
    ),
    "objects": (changed(sending(lambda order: raw(order, pickle.dumps(Bomb()), "|O"))), r"'\|O'"),
    "pickle": (changed(sending(lambda order: raw(order, pickle.dumps(Bomb())))), "bytes for an array"),
    "numpy's format": (
        changed(sending(lambda order: ArrayRecord({"update": Array(np.zeros((1, 640), np.float32))}))),
        "'numpy.ndarray'",
    ),
    "too large": (changed(sending(lambda order: raw(order, bytes(10**6)))), "a reply of more than 68,096 bytes"),
    "beyond the protocol": (
        changed(
            sending(lambda order: ArrayRecord({"update": array_from_tensor(torch.full_like(order.starts, 100.0))}))
        ),
        "an update of norm 2530, the protocol allows",
    ),
    "never": (changed(lambda *_: None), "no reply within"),
}


def test_bad_replies_are_zero_updates_that_keep_their_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clients = len(BAD) + 4
    threat = {"clients": len(BAD), "rounds": "every", "poison": "update"}
    config = founded(tmp_path / "fed", experiment(tmp_path / "e", clients, threat=threat), deadline=1.0)
    nodes = [*(node for node, _ in BAD.values()), *[honest] * 4]
    fed = federated(config, nodes, tmp_path / "run")
    rows = fed.ledger.clients
    assert rows.client[rows.quarantined].tolist() == [*range(len(BAD)), *range(len(BAD))]
    assert (rows.residual_norm[rows.quarantined] == 0).all()
    assert (rows.residual_norm[~rows.quarantined] > 0).all()
    assert np.allclose(rows.weight_bound, [1 / clients] * 2 * clients)
    assert [record.quarantined for record in fed.ledger.rounds] == [len(BAD)] * 2
    noted = problems(tmp_path / "journal")
    for client, (name, (_, problem)) in enumerate(BAD.items()):
        assert re.search(problem, noted[1, client]), name
    assert len(noted) == 2 * len(BAD)
    assert not Path("exploded").exists()
    assert not fed.metrics.refused


def test_whoever_missed_a_reply_counts_among_the_assumed_attackers(tmp_path: Path) -> None:
    config = founded(tmp_path / "fed", experiment(tmp_path / "e"), deadline=0.2, min_replies=2)
    once = federated(config, [honest, honest, BAD["raises"][0], honest], tmp_path / "once")
    assert not once.metrics.refused
    fed = federated(config, [raises, honest, raises, honest], tmp_path / "run")
    refused = "; ".join(fed.metrics.refused.values())
    assert "4 bad updates of 2 clients" in refused
    assert "let threat.clients and threat.rounds cover them" in refused


def test_a_round_with_too_few_replies_is_tried_again_and_then_stops_resumable(tmp_path: Path) -> None:
    asked: list[int] = []

    def flaky(message: Message, context: Context) -> Message | None:
        asked.append(1)
        return None if len(asked) in (2, 3) else honest(message, context)

    config = founded(tmp_path / "fed", experiment(tmp_path / "e"), deadline=0.2, min_replies=4, attempts=2)
    with pytest.raises(RunError, match=r"round 2: 3 good replies after 2 attempts, engine.min_replies is 4"):
        federated(config, [honest, flaky, honest, honest], tmp_path / "run")
    resumed = federated(config, [honest, flaky, honest, honest], tmp_path / "run")
    whole = federated(config, [honest] * 4, tmp_path / "whole")
    assert (resumed.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()
    assert not resumed.ledger.clients.quarantined.any()


def test_who_answers_at_the_second_attempt_counts(tmp_path: Path) -> None:
    asked: list[int] = []

    def late(message: Message, context: Context) -> Message | None:
        asked.append(1)
        return None if len(asked) == 1 else honest(message, context)

    config = founded(tmp_path / "fed", experiment(tmp_path / "e"), deadline=0.2, min_replies=4)
    fed = federated(config, [honest, late, honest, honest], tmp_path / "run")
    assert not fed.ledger.clients.quarantined.any()
    assert len(asked) == 3
