"""The process of Flower's SuperLink: what it may write, and which connections it keeps."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from crfl_flower import superlink
from crfl_flower.processes import find_free_port
from crfl_flower.superlink import BoundedProtocol

LOGGING = """
import logging, sys
from crfl_flower.superlink import limit_file_size
limit_file_size(5000)
logging.basicConfig(stream=sys.stderr)
for number in range(1000):
    logging.error("line %s", number)
print("goes on")
"""


def test_a_log_that_is_full_ends_no_server(tmp_path: Path) -> None:
    log = tmp_path / "superlink.log"
    with log.open("wb") as stream:
        done = subprocess.run([sys.executable, "-c", LOGGING], stderr=stream, stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"goes on\n"
    assert 4000 < log.stat().st_size <= 5000


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server that keeps three connections of each address, and silent ones for a second."""
    monkeypatch.setattr(BoundedProtocol, "connections_of", Counter())
    monkeypatch.setattr(BoundedProtocol, "connections_allowed", 3)
    monkeypatch.setattr(superlink, "FIRST_REQUEST_SECONDS", 1.0)

    async def app(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    number = find_free_port()
    config = uvicorn.Config(app, port=number, http=BoundedProtocol, ws="none", lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield number
    server.should_exit = True
    thread.join(10)


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.1)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def ask(connection: socket.socket) -> bytes:
    connection.settimeout(10)
    connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    return connection.recv(12)


def test_an_address_has_few_connections_and_takes_none_from_others(port: int) -> None:
    flood = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    time.sleep(0.3)
    assert sum(map(is_open, flood)) <= 3
    with socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0)) as other:
        assert ask(other) == b"HTTP/1.1 200"
    for connection in flood:
        connection.close()
    time.sleep(0.3)
    with socket.create_connection(("127.0.0.1", port)) as later:
        assert ask(later) == b"HTTP/1.1 200"


def test_a_silent_connection_is_closed(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as silent, socket.create_connection(("127.0.0.1", port)) as busy:
        assert ask(busy) == b"HTTP/1.1 200"
        time.sleep(1.5)
        assert not is_open(silent)
        assert BoundedProtocol.connections_of["127.0.0.1"] <= 1
