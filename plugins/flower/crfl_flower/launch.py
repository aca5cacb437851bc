"""Start Flower's processes for `crfl serve` and `crfl join`, run, and clean up."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from crfl_core.errors import PluginError, RunError, StoreError
from crfl_core.plugin_api.tracker import Tracker

if TYPE_CHECKING:
    from crfl_core import RunResult
    from crfl_flower.connection import Address
    from crfl_flower.engine import Flower

REQUEST_BYTES = 32 * 2**20
"""Size limit of a request to the server, in bytes; Flower cuts arrays into pieces of 5 MB."""
Say = Callable[[str], object]


def check_flower() -> None:
    """Raise `PluginError` if Flower is not installed."""
    if find_spec("flwr") is None:
        raise PluginError("Flower is not installed: a federation needs it: pip install 'crfl[flower]'")


def serve(config: Path, out: Path | None, overrides: Sequence[str], trackers: Sequence[Tracker], say: Say) -> RunResult:
    """Run a federation from its first node to its certificates; return the result."""
    check_flower()
    from crfl_flower import connection
    from crfl_flower.keys import read_client_keys
    from crfl_flower.server_app import FederatedRun, load_settings

    loaded, engine = load_settings(config, overrides)
    federated = FederatedRun(config, out, overrides, trackers, say)
    federated.run_path(loaded)
    with start_superlink(engine) as address:
        connection.register_nodes(address, read_client_keys(engine.folder))
        gate_path(engine.folder).touch()
        say(f"listening at {engine.address}, waiting for {len(read_client_keys(engine.folder))} nodes")
        with connection.run_server_task(address) as (grid, context):
            federated.build_app()(grid=grid, context=context)
    assert federated.result is not None
    return federated.result


def gate_path(folder: Path) -> Path:
    """Return the file whose presence lets nodes in."""
    return folder / "superlink.open"


@contextmanager
def start_superlink(engine: Flower) -> Iterator[Address]:
    """Start Flower's SuperLink with TLS, for registered nodes only, and yield its address."""
    from crfl_flower import connection, processes, superlink

    folder = engine.folder
    for name in ("ca.crt", "server.crt", "server.key"):
        if not (folder / name).is_file():
            raise StoreError(f"{folder / name}: is missing: `crfl federation init` writes it, docs/flower.md says how")
    host, _, port = engine.address.rpartition(":")
    secret = secrets.token_bytes(32)
    with write_secret_file(folder / "superlink.secret", secret) as path:
        options = ["--host", host, "--port", port, "--isolation", "process", "--superexec-auth-secret-file", str(path)]
        options += ["--ssl-ca-certfile", str(folder / "ca.crt"), "--ssl-certfile", str(folder / "server.crt")]
        options += ["--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth"]
        options += ["--database", str(folder / "superlink.db"), "--disable-runtime-dependency-installation"]
        gate_path(folder).unlink(missing_ok=True)
        variables = {superlink.LIMIT_VARIABLE: str(REQUEST_BYTES), superlink.GATE_VARIABLE: str(gate_path(folder))}
        log = folder / "superlink.log"
        with processes.run_process("crfl_flower.superlink", options, log, folder / "flwr", variables) as process:
            here = f"127.0.0.1:{port}" if host in ("0.0.0.0", "127.0.0.1") else engine.address
            processes.wait_for_port(here, process, log)
            yield connection.Address(here, (folder / "ca.crt").read_bytes(), secret)


def join(path: Path, say: Say) -> None:
    """Train whenever the server asks, until the server refuses this node or the user stops it."""
    check_flower()
    from crfl_flower import connection, processes
    from crfl_flower.client_app import NODE_FILE_KEY, app, open_node

    node = open_node(path.absolute())
    samples = len(node.data.x)
    certificate = node.folder / node.file.certificate
    key = node.folder / node.file.key
    for file in (certificate, key):
        if not file.is_file():
            raise StoreError(f"{file}: is missing: {path} names it")
    port = processes.find_free_port()
    secret = secrets.token_bytes(32)
    log = node.folder / "supernode.log"
    with write_secret_file(node.folder / "supernode.secret", secret) as secret_path:
        options = ["--superlink", node.file.server, "--root-certificates", str(certificate)]
        options += ["--auth-supernode-private-key", str(key), "--isolation", "process", "--port", str(port)]
        options += ["--superexec-auth-secret-file", str(secret_path)]
        options += ["--node-config", f"{NODE_FILE_KEY}={json.dumps(str(node.path))}"]
        with processes.run_process("crfl_flower.supernode", options, log, node.folder / "flwr") as process:
            address = connection.Address(f"127.0.0.1:{port}", None, secret)
            processes.wait_for_port(address.server, process, log)
            say(f"joining {node.file.server} with {samples} samples, which stay here")
            connection.answer_tasks(address, app, lambda: process.poll() is not None)
            raise RunError(
                f"the server at {node.file.server} {explain_refusal(processes.read_log_tail(log), certificate)}"
            )


def explain_refusal(words: str, certificate: Path) -> str:
    """Return why the server refused, from the log of the SuperNode that ended."""
    if "Failed to activate" in words:
        return f"does not know the key of this node: copy its .pub file into the server's folder `nodes`: {words}"
    if "certificate" in words.lower():
        return f"has a certificate that {certificate} does not vouch for: get the server's ca.crt: {words}"
    return f"is no longer available: {words}"


@contextmanager
def write_secret_file(path: Path, secret: bytes) -> Iterator[Path]:
    """Write a secret for a process to read at its start; delete the file at the end of the block."""
    from crfl_flower.keys import write_secret

    path.unlink(missing_ok=True)
    write_secret(path, secret)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
