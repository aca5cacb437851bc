"""Flower's SuperLink as `crfl federation serve` starts it: in memory, and behind a gate.

The SuperLink keeps its state in memory: a server that starts again registers the keys that are in its folder, and no
others. Its log cannot grow beyond `LOG_BYTES`, and no address may hold more than a few connections.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from crfl_flower.reply_limits import limit_replies
from crfl_flower.request_gate import Limits, RegisteredKeys, RequestGate

KEYS_VARIABLE = "CRFL_FLOWER_KEYS"
"""Environment variable: the folder with the public keys of nodes."""
SECRET_VARIABLE = "CRFL_FLOWER_SECRET"
"""Environment variable: the file with the secret that the server shares with its SuperLink."""
CONNECTIONS_VARIABLE = "CRFL_FLOWER_CONNECTIONS"
"""Environment variable: the number of connections that one address may hold."""
FIRST_REQUEST_SECONDS = 20.0
"""Seconds until a new connection must have sent the head of a request."""
LOG_BYTES = 64 * 2**20
"""Size at which the system refuses to let the SuperLink extend a file: its log is the only one that it writes."""


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with bounded heads, few connections per address, and an end to silent connections."""

    connections_of: ClassVar[Counter[str]] = Counter()
    connections_allowed: ClassVar[int] = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or close it if its address holds too many."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._first_request = self.loop.call_later(FIRST_REQUEST_SECONDS, self._end_if_silent)
        self.connections_of[self._address] += 1
        if self.connections_of[self._address] > self.connections_allowed:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._first_request.cancel()
        self.connections_of[self._address] -= 1
        if not self.connections_of[self._address]:
            del self.connections_of[self._address]
        super().connection_lost(exc)

    def _end_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.abort()


def run_bounded(**options: Any) -> None:
    """Run Flower's HTTP server with bounded connections.

    The server has no access log.
    """
    uvicorn.run(**options | {"http": BoundedProtocol, "ws": "none", "access_log": False, "server_header": False})


def limit_file_size(most: int) -> None:
    """Let no file of this process grow beyond a size.

    Logging ignores that it cannot write.
    """
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def main() -> None:
    """Start the SuperLink.

    The first argument is the id of the parent process, the others are `flower-superlink`'s.
    """
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.servicer.fleet import fleet_handlers
    from starlette.middleware import Middleware

    limit_file_size(LOG_BYTES)
    start_parent_process_monitor(int(sys.argv.pop(1)))
    limits = Limits()
    keys = RegisteredKeys(Path(os.environ[KEYS_VARIABLE]))
    secret = Path(os.environ[SECRET_VARIABLE]).read_bytes().hex()
    inner = extensions.get_middleware
    gate = Middleware(RequestGate, keys=keys, secret=secret, limits=limits)
    extensions.get_middleware = lambda: (gate, *inner())
    vars(fleet_handlers)["push_messages"] = limit_replies(fleet_handlers.push_messages, limits)
    BoundedProtocol.connections_allowed = int(os.environ[CONNECTIONS_VARIABLE])
    vars(sys.modules[flower_superlink.__module__])["uvicorn"] = SimpleNamespace(run=run_bounded)
    flower_superlink()


if __name__ == "__main__":
    main()
