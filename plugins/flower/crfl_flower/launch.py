"""Start Flower's processes for `crfl federation serve` and `crfl federation join`, run, and clean up."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from crfl_core.errors import PluginError, RunError, StoreError
from crfl_core.plugin_api.tracker import Tracker

if TYPE_CHECKING:
    from crfl_core import RunResult
    from crfl_flower.client_app import Node
    from crfl_flower.connection import Address
    from crfl_flower.engine import Flower

Say = Callable[[str], object]
CONNECTIONS = 32
CONNECTIONS_PER_NODE = 8
"""Connections to the server that one address may hold, and how many more for each client of the federation."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds that a node waits before it tries to join again; they double with each failure."""
SILENT_RETRY_SECONDS = 15.0
"""Seconds for which Flower's SuperNode repeats a request on its own; then the node says that the server is away."""
JOINED = "SuperNode ID:"
"""Text in the log of a SuperNode that the server has accepted."""
REFUSALS = {
    "'410 ": "does not know the key of this node: copy its .pub file into the server's folder `nodes`",
    "'409 ": "has another clock than this node: set both clocks",
    "'413 ": "refuses a request that is too large",
    "'429 ": "receives more requests from this node than it allows",
    "Failed to activate": "counts this node as connected, because another process uses its key or did so a minute ago",
    "refused": "cannot be reached",
    "'503 ": "is starting",
}
"""Reasons of a server to refuse, by a text in the log of the SuperNode."""


def check_flower() -> None:
    """Raise `PluginError` if Flower is not installed."""
    if find_spec("flwr") is None:
        raise PluginError("Flower is not installed: a federation needs it: pip install 'crfl[flower]'")


def serve(config: Path, out: Path | None, overrides: Sequence[str], trackers: Sequence[Tracker], say: Say) -> RunResult:
    """Run a federation from its first node to its certificates."""
    check_flower()
    from crfl_flower import connection
    from crfl_flower.keys import check_secret_file, private_files, read_client_keys
    from crfl_flower.server_app import FederatedRun, load_settings

    loaded, engine = load_settings(config, overrides)
    federated = FederatedRun(config, out, overrides, trackers, say)
    federated.run_path(loaded)
    check_secret_file(config)
    keys = read_client_keys(engine.folder)
    with private_files(), start_superlink(engine, len(keys)) as address:
        federated.nodes = connection.register_nodes(address, keys)
        with connection.run_server_task(address) as (grid, context):
            say(f"listening at {engine.address}, waiting for {sum(key is not None for key in keys)} nodes")
            federated.build_app()(grid=grid, context=context)
    assert federated.result is not None
    return federated.result


@contextmanager
def start_superlink(engine: Flower, clients: int) -> Iterator[Address]:
    """Start Flower's SuperLink with TLS and yield its address.

    Only registered nodes may join.
    """
    from crfl_flower import connection, processes, superlink
    from crfl_flower.keys import check_secret_file

    folder = engine.folder
    for name in ("ca.crt", "server.crt", "server.key"):
        if not (folder / name).is_file():
            raise StoreError(f"{folder / name}: is missing: `crfl federation init` writes it")
    check_secret_file(folder / "server.key")
    host, _, port = engine.address.rpartition(":")
    processes.check_port(host, int(port))
    secret = secrets.token_bytes(32)
    with write_secret_file(folder / "superlink.secret", secret) as path:
        options = ["--host", host, "--port", port, "--isolation", "process", "--superexec-auth-secret-file", str(path)]
        options += ["--ssl-ca-certfile", str(folder / "ca.crt"), "--ssl-certfile", str(folder / "server.crt")]
        options += ["--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth"]
        options += ["--disable-runtime-dependency-installation"]
        variables = {
            superlink.KEYS_VARIABLE: str(folder / "nodes"),
            superlink.SECRET_VARIABLE: str(path),
            superlink.CONNECTIONS_VARIABLE: str(CONNECTIONS + CONNECTIONS_PER_NODE * clients),
        }
        log = folder / "superlink.log"
        with processes.run_process("crfl_flower.superlink", options, log, folder / "flwr", variables) as process:
            here = f"127.0.0.1:{port}" if host in ("0.0.0.0", "127.0.0.1") else engine.address
            processes.wait_for_port(here, process, log)
            yield connection.Address(here, (folder / "ca.crt").read_bytes(), secret)


def join(path: Path, say: Say) -> None:
    """Train whenever the server asks, until the user stops it.

    When the server cannot be reached or refuses this node, says so and tries again, after pauses that grow. Raises
    `RunError` if the server's certificate is not the one that this node trusts.
    """
    check_flower()
    from crfl_flower.client_app import open_node
    from crfl_flower.keys import check_secret_file, private_files

    node = open_node(path.absolute())
    samples = len(node.data.x)
    certificate = node.folder / node.file.certificate
    if not certificate.is_file():
        raise StoreError(f"{certificate}: is missing: {path} names it")
    check_secret_file(node.folder / node.file.key)
    pause = FIRST_PAUSE
    with private_files():
        while True:
            began = time.monotonic()
            say(f"joining {node.file.server} with {samples} samples, which stay here")
            words = run_supernode(node, say)
            if "certificate verify failed" in words:
                raise RunError(
                    f"the server at {node.file.server} has a certificate that {certificate} does not vouch for: get "
                    f"the server's ca.crt: {words}"
                )
            if time.monotonic() - began > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            say(f"the server at {node.file.server} {explain_refusal(words)}; trying again in {pause:.0f} s")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def run_supernode(node: Node, say: Say) -> str:
    """Answer the server through a SuperNode until the SuperNode ends.

    Return the end of its log.
    """
    import httpx

    from crfl_flower import connection, processes
    from crfl_flower.client_app import NODE_FILE_KEY, app

    port = processes.find_free_port()
    secret = secrets.token_bytes(32)
    log = node.folder / "supernode.log"
    with write_secret_file(node.folder / "supernode.secret", secret) as path:
        options = ["--superlink", node.file.server, "--root-certificates", str(node.folder / node.file.certificate)]
        options += ["--auth-supernode-private-key", str(node.folder / node.file.key), "--isolation", "process"]
        options += ["--port", str(port), "--superexec-auth-secret-file", str(path)]
        options += ["--max-wait-time", f"{SILENT_RETRY_SECONDS:g}"]
        options += ["--node-config", f"{NODE_FILE_KEY}={json.dumps(str(node.path))}"]
        with processes.run_process("crfl_flower.supernode", options, log, node.folder / "flwr") as process:
            address = connection.Address(f"127.0.0.1:{port}", None, secret)
            try:
                processes.wait_for_port(address.server, process, log)
                while process.poll() is None and JOINED not in log.read_text(encoding="utf-8", errors="replace"):
                    time.sleep(0.2)
                if process.poll() is None:
                    say(f"joined {node.file.server}, waiting for its orders")
                connection.answer_tasks(address, app, lambda: process.poll() is not None)
            except (RunError, httpx.HTTPError) as error:
                return f"{error}: {processes.read_log_tail(log)}"
            return processes.read_log_tail(log)


def explain_refusal(words: str) -> str:
    """Return why the server refused.

    The words come from the log of the SuperNode that ended.
    """
    for sign, meaning in REFUSALS.items():
        if sign in words:
            return meaning
    return f"is not available: {words}"


@contextmanager
def write_secret_file(path: Path, secret: bytes) -> Iterator[Path]:
    """Write a secret for a process to read at its start.

    The file is deleted at the end of the block.
    """
    from crfl_flower.keys import write_secret

    path.unlink(missing_ok=True)
    write_secret(path, secret)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
