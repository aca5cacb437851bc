"""Nodes that speak Flower's protocol themselves: what no SuperNode would send ends no federation, and fills nothing."""

from __future__ import annotations

import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from crfl_flower import connection, processes
from crfl_flower.messages import TrainingOrder
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, StopRunRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from crfl_core import load
from tests.flower.processes import commands, wait_until
from tests.flower.support import context, experiment, founded, honest, problems
from tests.flower.test_hostile_nodes import BOUND, watch
from tests.flower.test_real_federation import rounds_in

ROUNDS = 4
DEADLINE = 15.0


class RawNode:
    """A node that answers with `act(self, order, message)`; registers honestly."""

    def __init__(self, folder: Path, server: str, act: Callable[[RawNode, TrainingOrder, Message], None]) -> None:
        key = load_ssh_private_key((folder / "node.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self.public = public_key_to_bytes(key.public_key())
        self.client = FleetHttpClient.from_server_address(
            server,
            False,
            (folder / "ca.crt").read_bytes(),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, key.public_key()),
            ],
        )
        self.file = folder / "node.toml"
        self.act = act
        self.over = threading.Event()
        self.statuses: list[int] = []
        self.node = Node()
        self.run = 0

    def live(self) -> None:
        """Join, and answer every order until the end of the test."""
        while not self.over.is_set():
            with suppress(httpx.HTTPError):
                self.node = Node(
                    node_id=self.client.ActivateNode(
                        ActivateNodeRequest(public_key=self.public, heartbeat_interval=1800.0)
                    ).node_id
                )
                break
            time.sleep(0.2)
        while not self.over.is_set():
            with suppress(httpx.HTTPError):
                self.answer_next()
            time.sleep(0.2)

    def answer_next(self) -> None:
        found = self.client.PullMessages(PullMessagesRequest(node=self.node))
        if not found.messages_list:
            return
        metadata, tree = found.messages_list[0].metadata, found.message_object_trees[0]
        self.run = metadata.run_id
        contents = {
            part.object_id: self.client.PullObject(
                PullObjectRequest(node=self.node, run_id=self.run, object_id=part.object_id)
            ).object_content
            for part in iterate_object_tree(tree)
        }
        self.client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=self.run, message_object_id=tree.object_id)
        )
        message = inflate_object_from_contents(tree.object_id, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = tree.object_id
        if message.metadata.message_type == "train":
            self.act(self, TrainingOrder.from_message(message), message)
        else:
            self.reply(message)

    def reply(self, message: Message) -> None:
        """Answer as an honest node does."""
        reply = honest(message, context(self.file, self.node.node_id))
        reply.metadata.__dict__["_message_id"] = reply.object_id
        contents = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
        self.push(reply, get_object_tree(reply), contents)

    def push(self, reply: Message, tree: ObjectTree, contents: dict[str, bytes]) -> list[str]:
        """Announce a reply and send its parts; return what the server asked for."""
        said = message_to_proto(remove_content_from_message(reply))
        said.metadata.message_id = tree.object_id
        answer = self.client.PushMessages(
            PushMessagesRequest(
                node=self.node, messages_list=[said], message_object_trees=[tree], clientapp_runtime_list=[0.1]
            )
        )
        for name in answer.objects_to_push:
            if name in contents:
                self.push_object(name, contents[name], answer.session_id)
        return list(answer.objects_to_push)

    def push_object(self, name: str, content: bytes, session: str) -> None:
        request = PushObjectRequest(
            node=self.node, run_id=self.run, session_id=session, object_id=name, object_content=content
        )
        try:
            self.client.PushObject(request)
            self.statuses.append(200)
        except httpx.HTTPStatusError as error:
            self.statuses.append(error.response.status_code)
        except httpx.TransportError:  # the server closes the connection while the body is sent
            self.statuses.append(413)


def part(kind: bytes, body: bytes, *children: str) -> tuple[str, bytes]:
    """A part of a reply as Flower stores it, and its name."""
    content = b"%s %s %d\x00%s" % (kind, ",".join(children).encode(), len(body), body)
    return sha256(content).hexdigest(), content


def announces_many(raw: RawNode, order: TrainingOrder, message: Message) -> None:
    """20,000 parts, as in the review."""
    reply = Message(order.build_reply(order.starts), reply_to=message)
    parts = [ObjectTree(object_id=sha256(b"%d" % number).hexdigest()) for number in range(20_000)]
    tree = ObjectTree(object_id=sha256(secrets.token_bytes(8)).hexdigest(), children=parts)
    with suppress(httpx.HTTPError):
        assert raw.push(reply, tree, {}) == []


def sends_garbage(raw: RawNode, order: TrainingOrder, message: Message) -> None:
    """A message that no decoder understands."""
    reply = Message(order.build_reply(order.starts), reply_to=message)
    name, content = part(b"Message", b"\xff" * 100 + secrets.token_bytes(8))
    assert raw.push(reply, ObjectTree(object_id=name), {name: content}) == [name]


def sends_half(raw: RawNode, order: TrainingOrder, message: Message) -> None:
    """A reply of which one part never comes."""
    reply = Message(order.build_reply(order.starts), reply_to=message)
    name, content = part(b"Message", secrets.token_bytes(8), "0" * 64)
    tree = ObjectTree(object_id=name, children=[ObjectTree(object_id=sha256(secrets.token_bytes(8)).hexdigest())])
    raw.push(reply, tree, {name: content})


def floods(raw: RawNode, order: TrainingOrder, message: Message) -> None:
    """Much more than a reply, over many connections at once; then the reply."""
    with ThreadPoolExecutor(24) as pool:
        for _ in pool.map(lambda _: raw.push_object("0" * 64, bytes(30_000_000), "session"), range(24)):
            pass
    raw.reply(message)


def acting(*acts: Callable[[RawNode, TrainingOrder, Message], None]) -> Callable[..., None]:
    def act(raw: RawNode, order: TrainingOrder, message: Message) -> None:
        acts[order.round - 1](raw, order, message)

    return act


def obeys(raw: RawNode, _: TrainingOrder, message: Message) -> None:
    raw.reply(message)


@contextmanager
def living(raw: RawNode) -> Iterator[None]:
    thread = threading.Thread(target=raw.live, daemon=True)
    thread.start()
    try:
        yield
    finally:
        raw.over.set()
        thread.join(10)


@pytest.mark.usefixtures("nothing_left")
def test_raw_nodes_end_no_federation_and_a_revoked_key_counts_no_longer(tmp_path: Path) -> None:
    threat = {"clients": 2, "rounds": "every", "poison": "update"}
    config = experiment(tmp_path / "e", 4, rounds=ROUNDS, threat=threat)
    fed, out = tmp_path / "fed", tmp_path / "run"
    address = f"127.0.0.1:{processes.find_free_port()}"
    server = founded(fed, config, address, deadline=DEADLINE)
    hostile = RawNode(fed / "node-2", address, acting(announces_many, sends_garbage, sends_half, obeys))
    flooding = RawNode(fed / "node-3", address, acting(floods, obeys, obeys, obeys))
    most: dict[str, int] = {}
    with (
        commands(tmp_path) as start,
        living(hostile),
        living(flooding),
    ):
        serving = start("serve", "federation", "serve", str(server), "--out", str(out))
        for client in range(2):
            start(f"join-{client}", "federation", "join", str(fed / f"node-{client}" / "node.toml"))
        wait_until(lambda: rounds_in(out) >= 1 or serving.process.poll() is not None, "round 1")
        strangers_are_refused(address, fed)
        only_the_owner_reads(fed / "server")
        key = fed / "server" / "nodes" / "node-3.pub"
        wait_until(lambda: rounds_in(out) >= 2 or serving.process.poll() is not None, "round 2")
        key.rename(key.with_suffix(".revoked"))

        def over() -> bool:
            watch(most, serving.process.pid, fed / "server")
            return serving.process.poll() is not None

        wait_until(over, "the last round")
        assert serving.process.returncode == 0, serving.said
    rows = load(out).ledger.clients
    bad = {(int(r), int(c)) for r, c in zip(rows.round[rows.quarantined], rows.client[rows.quarantined], strict=True)}
    noted = problems(fed / "server" / "replies.jsonl")
    assert {(1, 2), (2, 2), (3, 2), (4, 3)} <= bad <= {(1, 2), (2, 2), (3, 2), (3, 3), (4, 3)}, noted
    assert "something unreadable" in noted[2, 2]
    refused = [status for status in flooding.statuses if status != 200]
    assert len(refused) == 24
    assert set(refused) <= {413, 429}
    assert max(most.values()) < BOUND, most
    only_the_owner_reads(out)


def strangers_are_refused(address: str, fed: Path) -> None:
    """Without the secret of the server, a user of its machine neither lists nor stops runs."""
    client = ControlHttpClient.from_server_address(
        address, False, (fed / "node-0" / "ca.crt").read_bytes(), interceptors=[]
    )
    for ask in (lambda: client.ListRuns(ListRunsRequest()), lambda: client.StopRun(StopRunRequest(run_id=1))):
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            ask()
    guess = connection.Address(address, (fed / "node-0" / "ca.crt").read_bytes(), b"guess")
    with connection.open_control(guess) as guessing, pytest.raises(httpx.HTTPStatusError, match="403"):
        guessing.ListRuns(ListRunsRequest())


def only_the_owner_reads(folder: Path) -> None:
    """No file below a folder can be read by other users."""
    open_to_others = [path for path in [folder, *folder.rglob("*")] if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert open_to_others == []
