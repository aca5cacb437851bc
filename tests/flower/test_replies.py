"""Replies that do not count: each is a zero update that keeps its weight, and the ledger and the journal tell."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from crfl_flower.client_app import find_node
from crfl_flower.messages import RAW_FORMAT, TrainingOrder, array_from_tensor
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

from crfl_core import RunResult
from crfl_core.extend import RunError
from tests.flower.support import Answer, LocalGrid, experiment, federated, founded, honest, problems


class Bomb:
    """Raise when it is unpickled."""

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


def test_a_client_that_missed_a_reply_counts_among_the_assumed_attackers(tmp_path: Path) -> None:
    config = founded(tmp_path / "fed", experiment(tmp_path / "e"), deadline=0.2)
    once = federated(config, [honest, honest, BAD["raises"][0], honest], tmp_path / "once")
    assert not once.metrics.refused
    fed = federated(config, [raises, honest, raises, honest], tmp_path / "run")
    refused = "; ".join(fed.metrics.refused.values())
    assert "4 bad updates of 2 clients" in refused
    assert "let threat.clients and threat.rounds cover them" in refused


def test_a_round_without_any_reply_is_a_round_of_zero_updates(tmp_path: Path) -> None:
    config = founded(tmp_path / "fed", experiment(tmp_path / "e"), deadline=0.2)
    fed = federated(config, [raises] * 4, tmp_path / "run")
    assert fed.ledger.clients.quarantined.all()
    assert fed.metrics.refused


GROUPED = {
    "groups": {"count": 4},
    "certificates": ["group-vote"],
    "threat": {"clients": 3, "rounds": "every", "poison": "update"},
}


@pytest.mark.parametrize("changes", [{}, GROUPED], ids=["pathwise", "groups"])
def test_a_withheld_reply_changes_no_other_clients_part_in_a_round(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Two nodes are too slow for the deadline of an order, and answer it if they are asked once more."""

    def run_beside(attacker: Answer, name: str) -> RunResult:
        asked: dict[tuple[int, int], int] = {}

        def slow(message: Message, context: Context) -> Message | None:
            order = TrainingOrder.from_message(message)
            asked[order.client, order.round] = asked.get((order.client, order.round), 0) + 1
            return None if asked[order.client, order.round] == 1 else honest(message, context)

        fed = federated(config, [attacker, slow, slow, honest], tmp_path / name)
        assert set(asked.values()) == {1}
        return fed

    config = founded(tmp_path / "fed", experiment(tmp_path / "e", **changes), deadline=0.3)
    present = run_beside(honest, "present").ledger.clients
    withheld = run_beside(changed(lambda *_: None), "withheld").ledger.clients
    others = present.client > 0
    assert (present.quarantined[others] == withheld.quarantined[others]).all()
    assert present.client[present.quarantined].tolist() == [1, 2] * 2
    assert withheld.client[withheld.quarantined].tolist() == [0, 1, 2] * 2


def undecodable() -> Exception:
    """The error of Flower for a message that is none."""
    try:
        Message.inflate(b"Message  4\x00\xff\xff\xff\xff", {})
    except Exception as error:
        return error
    raise AssertionError


def test_a_reply_that_flower_cannot_decode_or_hand_out_is_a_zero_update(tmp_path: Path) -> None:
    """A reply may raise anything while it is read; only a SuperLink that does not answer ends the run."""

    class BrokenReplies(LocalGrid):
        failure: Exception = MemoryError()

        def pull_reply(self, message_id: str, limit: int) -> Message | None:
            reply = super().pull_reply(message_id, limit)
            if reply is not None and reply.metadata.src_node_id == 100:
                raise self.failure
            return reply

    config = founded(tmp_path / "fed", experiment(tmp_path / "e"), deadline=0.2)
    request = httpx.Request("POST", "https://server/v1/runtime/confirm-message-received")
    failures = [
        undecodable(),
        MemoryError(),
        RecursionError(),
        zipfile.BadZipFile(),
        httpx.HTTPStatusError("500", request=request, response=httpx.Response(500)),
    ]
    for number, failure in enumerate(failures):
        BrokenReplies.failure = failure
        fed = federated(config, [honest] * 4, tmp_path / f"run{number}", grid=BrokenReplies)
        assert fed.ledger.clients.client[fed.ledger.clients.quarantined].tolist() == [0, 0]
    BrokenReplies.failure = httpx.ConnectError("gone")
    with pytest.raises(RunError, match=r"Flower's SuperLink stopped answering, gone: .*superlink\.log may say why"):
        federated(config, [honest] * 4, tmp_path / "gone", grid=BrokenReplies)


def test_orders_that_were_not_answered_well_are_deleted_from_the_server(tmp_path: Path) -> None:
    """A node that is away, or hostile, never confirms an order, and Flower keeps what is not confirmed."""
    dropped: list[str] = []

    class Recording(LocalGrid):
        def drop(self, message_id: str) -> None:
            dropped.append(message_id)

    config = founded(tmp_path / "fed", experiment(tmp_path / "e", rounds=1), deadline=0.2)
    federated(config, [honest, raises, changed(lambda *_: None), honest], tmp_path / "run", grid=Recording)
    assert sorted(dropped) == ["1", "2"]


def test_a_node_that_is_away_while_continuations_train_is_named(tmp_path: Path) -> None:
    asked: list[int] = []

    def leaving(message: Message, context: Context) -> Message:
        asked.append(TrainingOrder.from_message(message).round)
        return raises(message, context) if len(asked) > 2 else honest(message, context)

    config = experiment(
        tmp_path / "e",
        certificates=["postprocess"],
        model={"type": "softmax", "bias": False, "features": {"type": "unit-ball"}},
        votes={"models": 4, "selection_models": 2},
        threat={"clients": 1, "rounds": [1], "poison": "update"},
    )
    served = founded(tmp_path / "fed", config, deadline=0.2)
    with pytest.raises(RunError, match=r"round 2 of a continuation: client 1: an error, 'Zero.*': every node"):
        federated(served, [honest, leaving, honest, honest], tmp_path / "run")
    assert not federated(served, [honest] * 4, tmp_path / "run").metrics.refused
