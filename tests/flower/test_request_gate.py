"""The gate in front of Flower's SuperLink: who is let in, and with how much."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import MutableMapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from crfl_flower import request_gate
from crfl_flower.keys import read_public_key, write_node_key
from crfl_flower.launch import CONNECTIONS, CONNECTIONS_PER_NODE
from crfl_flower.reply_limits import FEW_PARTS
from crfl_flower.request_gate import Limits, Receive, RegisteredKeys, RequestGate, Scope, Send
from crfl_flower.superlink import FIRST_REQUEST_SECONDS, LOG_BYTES
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import sign_message

PULL, PUSH, RUNS = "/v1/fleet/pull-messages", "/v1/fleet/push-object", "/v1/control/list-runs"
SECRET = "5ec2e7"


class Door:
    """A gate with one node, in front of an application that reads the whole body and answers 200."""

    def __init__(self, folder: Path) -> None:
        (folder / "nodes").mkdir()
        self.public = folder / "nodes" / "node-0.pub"
        write_node_key(folder / "node.key", self.public)
        self.private = folder / "node.key"
        self.key = read_public_key(self.public)
        self.limits = Limits(reply_bytes=1000)
        self.gate = RequestGate(self.app, RegisteredKeys(folder / "nodes"), SECRET, self.limits)
        self.inside = asyncio.Event()
        self.hold = False

    async def app(self, _: Scope, receive: Receive, send: Send) -> None:
        if self.hold:
            await self.inside.wait()
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                return
            if not event.get("more_body", False):
                break
        await send({"type": "http.response.start", "status": 200})

    def signed(self, private: Path | None = None, late: float = 0.0) -> list[tuple[bytes, bytes]]:
        """The headers of a node, as Flower's SuperNode writes them."""
        key = load_ssh_private_key((private or self.private).read_bytes(), None)
        stamp = (now() - timedelta(seconds=late)).isoformat()
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        headers = {
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.key).decode(),
            TIMESTAMP_HEADER: stamp,
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, stamp.encode())).decode(),
        }
        return [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def send(
        self, path: str, headers: list[tuple[bytes, bytes]], body: bytes = b"", length: int | None = None
    ) -> int:
        answers: list[MutableMapping[str, Any]] = []
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> MutableMapping[str, Any]:
            return parts.pop(0) if parts else {"type": "http.disconnect"}

        async def answer(event: MutableMapping[str, Any]) -> None:
            answers.append(event)

        said = [(b"content-length", str(len(body) if length is None else length).encode())]
        scope = {"type": "http", "client": ("192.0.2.1", 1), "path": path, "headers": [*headers, *said]}
        await self.gate(scope, receive, answer)
        return int(answers[0]["status"]) if answers else 0

    def knock(self, path: str, headers: list[tuple[bytes, bytes]], body: bytes = b"", length: int | None = None) -> int:
        """The status of an answer; 0 if the request broke off."""
        return asyncio.run(self.send(path, headers, body, length))


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


def secret(value: str = SECRET, **more: str) -> list[tuple[bytes, bytes]]:
    return [(b"crfl-secret", value.encode()), *((name.encode(), text.encode()) for name, text in more.items())]


def test_a_node_is_let_in_by_its_key(door: Door, tmp_path: Path) -> None:
    assert door.knock(PULL, door.signed()) == 200
    assert door.knock(PULL, []) == 410
    write_node_key(tmp_path / "other.key", tmp_path / "other.pub")
    assert door.knock(PULL, door.signed(tmp_path / "other.key")) == 401
    assert door.knock(PULL, door.signed(late=3600.0)) == 409
    assert door.knock(PULL, [(name, b"\xff") for name, _ in door.signed()]) == 401


def test_a_key_that_is_removed_is_refused_at_once(door: Door) -> None:
    headers = door.signed()
    assert door.knock(PULL, headers) == 200
    door.public.rename(door.public.with_suffix(".revoked"))
    assert door.knock(PULL, headers) == 410
    door.public.with_suffix(".revoked").rename(door.public)
    assert door.knock(PULL, headers) == 200


def test_a_damaged_key_file_keeps_out_no_other_node(door: Door) -> None:
    door.public.with_name("a.pub").write_text("no key")
    assert door.knock(PULL, door.signed()) == 200


@pytest.mark.parametrize("path", [RUNS, "/v1/runtime/acquire-task", "/health", "/docs"])
def test_all_but_nodes_need_the_secret_of_the_server(door: Door, path: str) -> None:
    assert door.knock(path, secret()) == 200
    assert door.knock(path, []) == door.knock(path, secret("guess")) == door.knock(path, door.signed()) == 403


def test_nodes_wait_until_the_server_says_how_large_a_reply_may_be(door: Door) -> None:
    door.limits.reply_bytes = None
    assert door.knock(PULL, door.signed()) == 503
    assert door.knock(RUNS, secret(**{"crfl-reply-bytes": "5000"})) == 200
    assert door.limits.reply_bytes == 5000
    assert door.knock(PULL, door.signed()) == 200


def test_a_node_sends_the_bytes_of_its_reply_and_no_more(door: Door) -> None:
    door.limits.quota(door.key).bytes_left = 150
    assert door.knock(PUSH, door.signed(), b"x" * 100) == 408  # before its reply has a deadline, and after it
    door.limits.quota(door.key).deadline = time.time() - 1
    assert door.knock(PUSH, door.signed(), b"x" * 100) == 408
    door.limits.quota(door.key).deadline = time.time() + 600
    assert door.knock(PUSH, door.signed(), b"x" * 100) == 200
    assert door.knock(PUSH, door.signed(), b"x" * 51) == 413
    assert door.knock(PUSH, door.signed(), b"x" * 50) == 200
    assert door.knock(PULL, door.signed(), length=request_gate.SHORT_REQUEST_BYTES + 1) == 413
    assert door.knock(RUNS, secret(), length=0, body=b"x" * (request_gate.SERVER_REQUEST_BYTES + 1)) == 0


def test_a_request_that_does_not_state_its_length_is_refused(door: Door) -> None:
    door.limits.quota(door.key).bytes_left = 150
    door.limits.quota(door.key).deadline = time.time() + 600
    assert door.knock(PUSH, [*door.signed(), (b"content-length", b"1")], b"x") == 413  # two lengths
    assert door.knock(PUSH, door.signed(), b"x", length=-1) == 413
    assert door.knock(PUSH, door.signed(), b"xx", length=1) == 0


def test_a_node_has_few_requests_open_and_silences_no_other(door: Door, tmp_path: Path) -> None:
    write_node_key(tmp_path / "b.key", tmp_path / "nodes" / "b.pub")

    async def flood() -> tuple[list[int], int]:
        door.hold = True
        headers = door.signed()
        held = [asyncio.create_task(door.send(PULL, headers)) for _ in range(request_gate.PARALLEL_REQUESTS)]
        await asyncio.sleep(0)
        refused = [await door.send(PULL, headers) for _ in range(16)]
        key, door.key = door.key, read_public_key(tmp_path / "nodes" / "b.pub")
        other = asyncio.create_task(door.send(PULL, door.signed(tmp_path / "b.key")))
        await asyncio.sleep(0)
        door.key = key
        door.inside.set()
        assert [await task for task in held] == [200] * len(held)
        return refused, await other

    assert asyncio.run(flood()) == ([429] * 16, 200)


def test_a_node_has_a_number_of_requests_in_a_minute(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_gate, "REQUESTS_PER_MINUTE", 3)
    monkeypatch.setattr(time, "monotonic", lambda: 60.0)
    headers = door.signed()
    assert [door.knock(PULL, headers) for _ in range(5)] == [200, 200, 200, 429, 429]
    monkeypatch.setattr(time, "monotonic", lambda: 120.0)
    assert door.knock(PULL, headers) == 200


def test_a_body_that_stops_arriving_breaks_off(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_gate, "BODY_SECONDS", 0.05)

    async def silent() -> MutableMapping[str, Any]:
        await asyncio.sleep(60)
        raise AssertionError

    async def receive_once() -> MutableMapping[str, Any]:
        return await request_gate.limit_body(silent, 10)()

    assert asyncio.run(receive_once()) == {"type": "http.disconnect"}


def test_the_documented_limits_are_those_of_the_gate() -> None:
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text(encoding="utf-8")
    sizes = [*request_gate.NODE_REQUEST_BYTES.values(), request_gate.SHORT_REQUEST_BYTES * 1024]
    large, announced, short = (size >> 20 for size in sizes)
    for said in (
        f"{request_gate.PARALLEL_REQUESTS} at a time and {request_gate.REQUESTS_PER_MINUTE:,} a minute",
        f"{large} MB of an array, {announced} MB of an announcement, {short} KB otherwise",
        f"| parts of a reply | {FEW_PARTS}, and one per MB |",
        f"ends at {LOG_BYTES >> 20} MB",
        f"| {CONNECTIONS}, and {CONNECTIONS_PER_NODE} for each client of the federation; "
        f"silent ones end after {FIRST_REQUEST_SECONDS:.0f} s |",
    ):
        assert said in page
