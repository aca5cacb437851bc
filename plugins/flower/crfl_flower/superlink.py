"""Flower's SuperLink as `crfl serve` starts it: with a door that lets in no more than a federation needs.

Flower has one port for nodes, for people who start runs and for apps. Nodes may be anywhere; the others are here. So
whoever comes from another machine is let through to the nodes' part alone, and nobody may send more than a limit at
once: a request lies in memory before Flower looks at it.
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
"""The variable that says how many bytes a request may have."""
GATE_VARIABLE = "CRFL_FLOWER_GATE"
"""The variable that names a file: nodes wait until it is there, which is when their keys are known."""
NODE_PATHS = "/v1/fleet/"
LOOPBACK_ADDRESSES = ("127.0.0.1", "::1")


class RequestGate:
    """An ASGI application in front of another one."""

    def __init__(self, app: App, limit: int, gate: Path) -> None:
        self._app = app
        self._limit = limit
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        host = (scope.get("client") or ("",))[0]
        for_nodes = scope["path"].startswith(NODE_PATHS)
        if host not in LOOPBACK_ADDRESSES and not for_nodes:
            await refuse_request(send, 403)
        elif for_nodes and not self._gate.exists():
            await refuse_request(send, 503)
        elif declared_length(scope) > self._limit:
            await refuse_request(send, 413)
        else:
            await self._app(scope, limit_body(receive, self._limit), send)


def declared_length(scope: Scope) -> int:
    """How many bytes a request says that it has; 0 if it does not say."""
    found = [value for name, value in scope["headers"] if name == b"content-length"]
    return int(found[0]) if found and found[0].isdigit() else 0


def limit_body(receive: Receive, limit: int) -> Receive:
    """The body of a request that did not say its length, which breaks off where it becomes too long."""
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
    """Start it: the first argument is the process to outlive nobody, the others are those of `flower-superlink`."""
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
