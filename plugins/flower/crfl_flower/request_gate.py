"""The gate in front of Flower's SuperLink: who may send a request, how large, and how often.

Flower has one port for nodes, for users who start runs, and for apps. The gate lets nodes in by their keys, and all
other requests only with the secret of `crfl federation serve`. It decides before the body of a request is read, because
a body is held in memory before Flower looks at it.
"""

from __future__ import annotations

import asyncio
import binascii
import hmac
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

from crfl_core.errors import StoreError
from crfl_flower.keys import read_public_key

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

NODE_PATHS = "/v1/fleet/"
SECRET_HEADER = "crfl-secret"
"""Header in which the server shows the secret that it shares with its SuperLink."""
REPLY_BYTES_HEADER = "crfl-reply-bytes"
"""Header in which the server states how large a reply may be. The first one lets nodes in."""

SERVER_REQUEST_BYTES = 32 * 2**20
"""Size limit of a request of the server, in bytes; Flower cuts arrays into pieces of 5 MB."""
NODE_REQUEST_BYTES = {"push-object": 6 * 2**20, "push-messages": 2**20}
"""Size limits of a node's requests, in bytes: a piece of an array, and the list of the parts of a reply."""
SHORT_REQUEST_BYTES = 8 * 2**10
"""Size limit of a node's other requests, in bytes."""
PARALLEL_REQUESTS = 8
"""Requests that a node may have open; Flower's SuperNode has up to four."""
REQUESTS_PER_MINUTE = 3000
"""Requests that a node may send in a minute; a SuperNode that waits for work sends about 120."""
BODY_SECONDS = 60.0
"""Seconds that each part of a body may take to arrive."""

UNAUTHENTICATED = 401
FORBIDDEN = 403
TOO_LATE = 408
UNKNOWN_KEY = 410
WRONG_CLOCK = 409
TOO_LARGE = 413
TOO_MANY = 429
CLOSED = 503


@dataclass
class NodeQuota:
    """Usage of a node: its open requests, its requests in this minute, and the bytes left for its reply.

    `deadline` is the time until which parts of the reply may arrive.
    """

    open: int = 0
    minute: int = 0
    requests: int = 0
    reply: str = ""
    bytes_left: int = 0
    deadline: float = 0.0

    def count_request(self) -> bool:
        """Count a request and return whether it is within the quota."""
        minute = int(time.monotonic() / 60)
        if minute != self.minute:
            self.minute = minute
            self.requests = 0
        self.requests += 1
        return self.open < PARALLEL_REQUESTS and self.requests <= REQUESTS_PER_MINUTE


@dataclass
class Limits:
    """Limits of all nodes. `reply_bytes` is None until the server lets nodes in."""

    reply_bytes: int | None = None
    quotas: dict[bytes, NodeQuota] = field(default_factory=dict)

    def quota(self, key: bytes) -> NodeQuota:
        """Return the quota of the node with this key."""
        return self.quotas.setdefault(key, NodeQuota())


class RegisteredKeys:
    """The keys `*.pub` of a folder. A file that is added or removed counts from the next request on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed = -1
        self._keys: frozenset[bytes] = frozenset()

    def __contains__(self, key: bytes) -> bool:
        try:
            changed = self._folder.stat().st_mtime_ns
        except OSError:  # without the folder, no key is registered
            return False
        if changed != self._changed:
            self._keys = frozenset(self._read_keys())
            self._changed = changed
        return key in self._keys

    def _read_keys(self) -> Iterator[bytes]:
        for file in self._folder.glob("*.pub"):
            with suppress(StoreError):  # a damaged file concerns its own node only
                yield read_public_key(file)


class RequestGate:
    """ASGI application in front of another one that refuses requests by sender, path, size and rate."""

    def __init__(self, app: App, keys: RegisteredKeys, secret: str, limits: Limits) -> None:
        self._app = app
        self._keys = keys
        self._secret = secret
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await refuse_request(send, FORBIDDEN)
        elif scope["path"].startswith(NODE_PATHS):
            await self._pass_node(scope, receive, send)
        else:
            await self._pass_server(scope, receive, send)

    async def _pass_server(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not hmac.compare_digest(read_header(scope, SECRET_HEADER), self._secret):
            await refuse_request(send, FORBIDDEN)
            return
        stated = read_header(scope, REPLY_BYTES_HEADER)
        if stated.isdecimal():
            self._limits.reply_bytes = max(int(stated), self._limits.reply_bytes or 0)
        await self._app(scope, limit_body(receive, SERVER_REQUEST_BYTES), send)

    async def _pass_node(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._limits.reply_bytes is None:
            await refuse_request(send, CLOSED)
            return
        key, status = authenticate_node(scope, self._keys)
        if status:
            await refuse_request(send, status)
            return
        quota = self._limits.quota(key)
        action = scope["path"].removeprefix(NODE_PATHS)
        most = NODE_REQUEST_BYTES.get(action, SHORT_REQUEST_BYTES)
        stated = read_header(scope, "content-length")
        length = int(stated) if stated.isdecimal() and len(stated) < 20 else -1
        if not quota.count_request():
            await refuse_request(send, TOO_MANY)
        elif action == "push-object" and time.time() > quota.deadline:
            await refuse_request(send, TOO_LATE)
        elif not 0 <= length <= most or (action == "push-object" and length > quota.bytes_left):
            await refuse_request(send, TOO_LARGE)
        else:
            if action == "push-object":
                quota.bytes_left -= length
            quota.open += 1
            try:
                await self._app(scope, limit_body(receive, length), send)
            finally:
                quota.open -= 1


def authenticate_node(scope: Scope, keys: RegisteredKeys) -> tuple[bytes, int]:
    """Return the key of the node that signed a request.

    The second value is 0, or a status that refuses the request. Flower checks the same signature again, after it has
    read the body.
    """
    try:
        key = b64decode(read_header(scope, FLEET_HTTP_PUBLIC_KEY_HEADER), validate=True)
        signature = b64decode(read_header(scope, FLEET_HTTP_SIGNATURE_HEADER), validate=True)
        stated = read_header(scope, TIMESTAMP_HEADER)
        if key not in keys:
            return key, UNKNOWN_KEY
        if not verify_signature(bytes_to_public_key(key), stated.encode("ascii"), signature):
            return key, UNAUTHENTICATED
        age = (now() - datetime.fromisoformat(stated)).total_seconds()
    except (ValueError, TypeError, binascii.Error):
        return b"", UNAUTHENTICATED
    fresh = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
    return key, 0 if fresh else WRONG_CLOCK


def read_header(scope: Scope, name: str) -> str:
    """Return the value of a header, or an empty text.

    Characters beyond ASCII become question marks.
    """
    wanted = name.lower().encode()
    found = [value for header, value in scope["headers"] if header.lower() == wanted]
    return found[0].decode("ascii", "replace").replace("\ufffd", "?") if len(found) == 1 else ""


def limit_body(receive: Receive, limit: int) -> Receive:
    """Return a receiver that limits the length of a body.

    It disconnects when the body is longer than `limit` or stops arriving.
    """
    left = limit
    complete = False

    async def receive_part() -> MutableMapping[str, Any]:
        nonlocal left, complete
        if complete:  # only the end of the connection is left to read
            return await receive()
        try:
            event = await asyncio.wait_for(receive(), BODY_SECONDS)
        except TimeoutError:
            return {"type": "http.disconnect"}
        left -= len(event.get("body", b""))
        complete = not event.get("more_body", False)
        return event if left >= 0 else {"type": "http.disconnect"}

    return receive_part


async def refuse_request(send: Send, status: int) -> None:
    """Refuse a request without reading it."""
    await send({"type": "http.response.start", "status": status, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": b""})
