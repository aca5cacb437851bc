"""Flower's SuperLink as `crfl serve` starts it, behind a gate that lets in only what a federation needs.

Flower has one port for nodes, for people who start runs, and for apps. Nodes may be on other machines; the others are
on this one. So requests from other machines reach only the nodes' part, and the size of every request is limited,
because a request is held in memory before Flower looks at it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LIMIT_VARIABLE = "CRFL_FLOWER_REQUEST_BYTES"
"""Environment variable: the size limit of a request, in bytes."""
GATE_VARIABLE = "CRFL_FLOWER_GATE"
"""Environment variable: a file whose presence lets nodes in; it appears when their keys are registered."""
NODE_PATHS = "/v1/fleet/"
LOOPBACK_ADDRESSES = ("127.0.0.1", "::1")


class RequestGate:
    """ASGI application in front of another one that refuses requests by origin, path and size."""

    def __init__(self, app: App, limit: int, gate: Path) -> None:
        self._app = app
        self._limit = limit
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        host = (scope.get("client") or ("",))[0]
        for_nodes = scope["path"].startswith(NODE_PATHS)
        if host not in LOOPBACK_ADDRESSES and not for_nodes:
            await refuse_request(send, 403)
        elif for_nodes and not self._gate.exists():
            await refuse_request(send, 503)
        elif content_length(scope) > self._limit:
            await refuse_request(send, 413)
        else:
            await self._app(scope, limit_body(receive, self._limit), send)


def content_length(scope: Scope) -> int:
    """Return the content length that a request declares, or 0."""
    found = [value for name, value in scope["headers"] if name == b"content-length"]
    return int(found[0]) if found and found[0].isdigit() else 0


def limit_body(receive: Receive, limit: int) -> Receive:
    """Return a receiver that disconnects when a body without declared length exceeds the limit."""
    left = limit

    async def received() -> MutableMapping[str, Any]:
        nonlocal left
        event = await receive()
        left -= len(event.get("body", b""))
        return event if left >= 0 else {"type": "http.disconnect"}

    return received


async def refuse_request(send: Send, status: int) -> None:
    """Refuse a request without reading it."""
    await send({"type": "http.response.start", "status": status, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Start the SuperLink. The first argument is the id of the parent process, the others are `flower-superlink`'s."""
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    start_parent_process_monitor(int(sys.argv.pop(1)))
    inner = extensions.get_middleware
    limit = int(os.environ[LIMIT_VARIABLE])
    gate = Path(os.environ[GATE_VARIABLE])
    extensions.get_middleware = lambda: (Middleware(RequestGate, limit=limit, gate=gate), *inner())
    flower_superlink()


if __name__ == "__main__":
    main()
