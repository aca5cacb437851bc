"""Nodes that do what they like, in a real federation: the run goes on, the ledger tells, memory stays bounded."""

from __future__ import annotations

import json
import pickle
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from crfl_flower import connection, processes
from crfl_flower.client_app import NODE_FILE_KEY, find_node
from crfl_flower.messages import RAW_FORMAT, TrainingOrder, array_from_tensor
from flwr.app import Array, ArrayRecord, Context, Message

from crfl_core import load
from tests.flower.processes import commands, wait_until
from tests.flower.support import experiment, founded, honest, problems

ROUNDS, GIGABYTE = 3, 10**9
DEADLINE = 30.0
BOUND = 1_500_000_000
"""Bytes that the server may have at most, with PyTorch in it."""

Misdeed = Callable[[TrainingOrder, Message, Context], Message]


def acting(*misdeeds: Misdeed) -> connection.ClientFunction:
    """A node that does something else in every round."""

    def answer(message: Message, context: Context) -> Message:
        if message.metadata.message_type != "train":
            return honest(message, context)
        order = TrainingOrder.from_message(message)
        return misdeeds[order.round - 1](order, message, context)

    return answer


def sent(order: TrainingOrder, message: Message, array: Array, name: str = "update") -> Message:
    content = order.build_reply(order.starts)
    content["arrays"] = ArrayRecord({name: array})
    return Message(content, reply_to=message)


def raises(order: TrainingOrder, message: Message, context: Context) -> Message:
    raise ZeroDivisionError("of a hostile node")


def hangs(order: TrainingOrder, message: Message, context: Context) -> Message:
    time.sleep(2 * DEADLINE)
    return honest(message, context)


def replays(order: TrainingOrder, message: Message, context: Context) -> Message:
    old = TrainingOrder(
        order.round - 1, order.token, order.client, order.total, order.specification, order.row, order.starts
    )
    return Message(old.build_reply(find_node(context).train(order)), reply_to=message)


def impersonates(order: TrainingOrder, message: Message, context: Context) -> Message:
    other = TrainingOrder(order.round, order.token, 0, order.total, order.specification, order.row, order.starts)
    return Message(other.build_reply(find_node(context).train(order)), reply_to=message)


def sends_a_gigabyte(order: TrainingOrder, message: Message, context: Context) -> Message:
    """Zeros: Flower sends one piece and says that it comes two hundred times."""
    return sent(order, message, Array(dtype="<f4", shape=(1, GIGABYTE // 4), stype=RAW_FORMAT, data=bytes(GIGABYTE)))


def sends_much(order: TrainingOrder, message: Message, context: Context) -> Message:
    """More than the model has, and no piece like another."""
    data = secrets.token_bytes(30_000_000)
    return sent(order, message, Array(dtype="<f4", shape=(1, len(data) // 4), stype=RAW_FORMAT, data=data))


def sends_other_names(order: TrainingOrder, message: Message, context: Context) -> Message:
    return sent(order, message, array_from_tensor(order.starts), "weights")


def sends_no_numbers(order: TrainingOrder, message: Message, context: Context) -> Message:
    return sent(order, message, array_from_tensor(order.starts * torch.nan))


def sends_a_pickle(order: TrainingOrder, message: Message, context: Context) -> Message:
    data = pickle.dumps(np.full(order.starts.shape, None))
    return sent(order, message, Array(dtype="|O", shape=tuple(order.starts.shape), stype="numpy.ndarray", data=data))


NODES: list[connection.ClientFunction] = [
    honest,
    honest,
    acting(raises, replays, sends_a_pickle),
    acting(sends_no_numbers, sends_a_gigabyte, hangs),
    acting(sends_other_names, sends_much, impersonates),
]
EXPECTED = {
    (1, 2): "an error, 'ZeroDivisionError'",
    (2, 2): "an answer for round '1'",
    (3, 2): "an array of ('numpy.ndarray', '|O'",
    (1, 3): "numbers that are not finite",
    (2, 3): "no reply within",
    (3, 3): "no reply within",
    (1, 4): "arrays ['weights']",
    (2, 4): "no reply within",
    (3, 4): "an answer for client '0'",
}


@pytest.mark.usefixtures("nothing_left")
def test_a_federation_goes_on_with_hostile_nodes(tmp_path: Path) -> None:
    threat = {"clients": 3, "rounds": "every", "poison": "update"}
    config = experiment(tmp_path / "e", len(NODES), rounds=ROUNDS, threat=threat)
    fed, out = tmp_path / "fed", tmp_path / "run"
    address = f"127.0.0.1:{processes.find_free_port()}"
    server = founded(fed, config, address, deadline=DEADLINE)
    most: dict[str, int] = {}
    with commands(tmp_path) as start, ExitStack() as stack:
        serving = start("serve", "federation", "serve", str(server), "--out", str(out))
        for client, answer in enumerate(NODES):
            stack.enter_context(node(fed / f"node-{client}", address, answer))

        def over() -> bool:
            watch(most, serving.process.pid, fed / "server")
            return serving.process.poll() is not None

        wait_until(over, "the last round")
        assert serving.process.returncode == 0, serving.said
    found = load(out)
    rows = found.ledger.clients
    bad = {(int(number), int(client)) for number, client in zip(rows.round, rows.client, strict=True) if client >= 2}
    marked = {(int(a), int(b)) for a, b, wrong in zip(rows.round, rows.client, rows.quarantined, strict=True) if wrong}
    assert marked == bad == set(EXPECTED)
    noted = {**problems(fed / "server" / "replies.jsonl")}
    if noted[3, 3].startswith("an error"):  # at the deadline Flower itself may be the first to say so
        noted[3, 3] = EXPECTED[3, 3]
    assert [key for key, problem in EXPECTED.items() if problem not in noted[key]] == [], noted
    assert not found.metrics.refused
    assert most
    assert max(most.values()) < BOUND, most


@contextmanager
def node(folder: Path, server: str, answer: connection.ClientFunction) -> Iterator[None]:
    """A SuperNode of its own process, whose app is in this one."""
    port, secret, log = processes.find_free_port(), secrets.token_bytes(32), folder / "supernode.log"
    (folder / "secret").write_bytes(secret)
    options = ["--superlink", server, "--root-certificates", str(folder / "ca.crt"), "--port", str(port)]
    options += ["--auth-supernode-private-key", str(folder / "node.key"), "--isolation", "process"]
    options += ["--superexec-auth-secret-file", str(folder / "secret")]
    options += ["--node-config", f"{NODE_FILE_KEY}={json.dumps(str(folder / 'node.toml'))}"]
    with processes.run_process("crfl_flower.supernode", options, log, folder / "flwr") as process:

        def answering() -> None:
            here = connection.Address(f"127.0.0.1:{port}", None, secret)
            processes.wait_for_port(here.server, process, log, 200.0)
            with suppress(httpx.HTTPError):  # it may end at any moment
                connection.answer_tasks(here, answer, lambda: process.poll() is not None)

        threading.Thread(target=answering, daemon=True).start()
        yield


def watch(most: dict[str, int], serving: int, folder: Path) -> None:
    """The most memory that the server and what runs beneath it have had."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            status = (entry / "status").read_text()
        except OSError:
            continue
        beneath_it = "crfl_flower.superlink" in command and str(folder) in command
        if (int(entry.name) == serving or beneath_it) and "VmHWM" in status:
            name = "superlink" if beneath_it else "serve"
            most[name] = int(status.partition("VmHWM:")[2].split()[0]) * 1024
