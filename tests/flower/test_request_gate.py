"""The door in front of Flower's SuperLink: who is let in, and with how much."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from crfl_flower.superlink import Receive, RequestGate, Scope, Send

NODES, RUNS = "/v1/fleet/pull-messages", "/v1/control/start-run"


def knock(
    gate: Path, path: str, host: str = "127.0.0.1", bodies: tuple[bytes, ...] = (b"",), said: int | None = None
) -> int:
    """The status of an answer, from an application that reads the whole body and says 200."""
    events = [{"type": "http.request", "body": body} for body in bodies]
    answers: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return events.pop(0) if events else {"type": "http.disconnect"}

    async def send(event: MutableMapping[str, Any]) -> None:
        answers.append(event)

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        for _body in bodies:
            if (await receive())["type"] == "http.disconnect":
                return
        await send({"type": "http.response.start", "status": 200})

    named = [] if said is None else [(b"content-length", str(said).encode())]
    scope = {"type": "http", "client": (host, 1), "path": path, "headers": named}
    asyncio.run(RequestGate(app, 100, gate)(scope, receive, send))
    return int(answers[0]["status"]) if answers else 0


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    path = tmp_path / "open"
    path.touch()
    return path


def test_nodes_may_come_from_anywhere_and_others_from_here(gate: Path) -> None:
    assert knock(gate, NODES, "192.0.2.1") == knock(gate, NODES) == knock(gate, RUNS) == 200
    assert knock(gate, RUNS, "192.0.2.1") == 403
    assert knock(gate, "/v1/runtime/acquire-task", "127.0.0.2") == 403


def test_nodes_wait_until_their_keys_are_known(tmp_path: Path) -> None:
    assert knock(tmp_path / "open", NODES) == 503
    assert knock(tmp_path / "open", RUNS) == 200


def test_a_request_that_says_it_is_too_long_is_not_read(gate: Path) -> None:
    assert knock(gate, NODES, said=101) == 413
    assert knock(gate, NODES, said=100) == 200


def test_a_request_that_does_not_say_it_breaks_off(gate: Path) -> None:
    assert knock(gate, NODES, bodies=(b"x" * 60, b"x" * 40)) == 200
    assert knock(gate, NODES, bodies=(b"x" * 60, b"x" * 41)) == 0
