"""The server app: rounds of the core with Flower nodes as clients."""

from __future__ import annotations

import secrets
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import HttpGrid

from crfl_core import RunResult, run
from crfl_core.config import RunConfig, load_config
from crfl_core.errors import ConfigError, RunError, StoreError
from crfl_core.plugin_api.tracker import Tracker
from crfl_core.runs.run_directory import RunDirectory
from crfl_flower.bounded_grid import POLL_SECONDS, BoundedGrid, bound_grid
from crfl_flower.engine import Flower
from crfl_flower.exchange import CURRENT_EXCHANGE, Exchange
from crfl_flower.keys import read_client_keys
from crfl_flower.messages import RegistrationRequest

JOURNAL = "replies.jsonl"
"""File in which the server records the replies that did not count."""
PARTITION = "remote"
"""The partitioner that knows sample counts but no samples."""


@dataclass
class FederatedRun:
    """One run of a federation: its config, its run directory, its trackers.

    `nodes` are the nodes of the clients that were registered with Flower, if this process registered them.
    """

    config: Path
    out: Path | None = None
    overrides: Sequence[str] = ()
    trackers: Sequence[Tracker] = ()
    say: Callable[[str], object] = lambda _: None
    nodes: list[int | None] | None = None
    result: RunResult | None = field(default=None, init=False)

    def build_app(self) -> ServerApp:
        """Return the run as a Flower server app."""
        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
            assert isinstance(grid, BoundedGrid)
            self.result = self.play(grid)

        return app

    def run_path(self, config: RunConfig) -> Path:
        """Return the run directory.

        Raises `StoreError` before any node joins if the directory holds a finished run.
        """
        path = self.out or Path("runs", config.name)
        if (path / "status.json").exists() and RunDirectory(path).state == "finished":
            raise StoreError(f"{path}: holds a finished run: name another directory with --out")
        return path

    def play(self, grid: BoundedGrid) -> RunResult:
        """Register the nodes, play all rounds and certify.

        Nodes that the resumed run has registered are not registered again.
        """
        config, engine = load_settings(self.config, self.overrides)
        path = self.run_path(config)
        samples = read_registered_samples(path)
        try:
            nodes = self._wait_for_nodes(grid, engine, required=samples is None)
            exchange = Exchange(grid, nodes, engine.folder / JOURNAL, self.say)
            samples = samples or self._register(exchange, config, engine)
            token = CURRENT_EXCHANGE.set(exchange)
            try:
                overrides = [*self.overrides, f"partition.samples={list(samples)}"]
                return run(self.config, overrides=overrides, out=path, trackers=self.trackers)
            finally:
                CURRENT_EXCHANGE.reset(token)
        except httpx.HTTPError as error:
            log = engine.folder / "superlink.log"
            raise RunError(f"Flower's SuperLink stopped answering, {error}: {log} may say why") from error
        except BaseException as error:
            notes = getattr(error, "__notes__", [])
            notes[:] = [self._advice(path) if note.startswith("resume with") else note for note in notes]
            raise

    def _advice(self, path: Path) -> str:
        """Return how to resume a run that ended early."""
        return f"resume with `crfl federation serve {self.config} --out {path}`"

    def _wait_for_nodes(self, grid: BoundedGrid, engine: Flower, *, required: bool) -> list[int | None]:
        """Wait until the node of every client has joined.

        Return the nodes, client 0 first. Raises `RunError` if some have not joined in time and all are `required`, as
        before round 1. A run that resumes continues without them.
        """
        keys = read_client_keys(engine.folder)
        revoked = [str(client) for client, key in enumerate(keys) if key is None]
        if required and revoked:
            raise RunError(
                f"the keys of clients {', '.join(revoked)} are revoked: before round 1, delete their files in "
                f"{engine.folder / 'nodes'} and lower partition.clients"
            )
        until = time.monotonic() + engine.wait
        while True:
            there = {node.public_key: node.node_id for node in grid.get_nodes()}
            absent = [str(client) for client, key in enumerate(keys) if key is not None and key not in there]
            if not absent:
                break
            if time.monotonic() > until:
                missing = f"the nodes of clients {', '.join(absent)} have not joined within {engine.wait:g} s"
                if required:
                    raise RunError(f"{missing}: start them with `crfl federation join`, or raise engine.wait")
                self.say(f"{missing}: continuing without them; they count as zero updates until they join")
                break
            time.sleep(POLL_SECONDS)
        return self.nodes or [None if key is None else there.get(key) for key in keys]

    def _register(self, exchange: Exchange, config: RunConfig, engine: Flower) -> list[int]:
        """Ask every node for its number of samples, once."""
        (engine.folder / JOURNAL).unlink(missing_ok=True)  # that of an earlier run
        data = config.dataset.load()
        partition = config.partition
        most = int(getattr(partition, "max_samples", 0))
        questions = {
            client: RegistrationRequest.for_client(data, client, secrets.token_hex(16), most)
            for client in range(exchange.total)
        }
        samples = exchange.register_clients(questions, time.monotonic() + engine.wait)  # they read their data now
        self.say(f"{len(samples)} clients registered {sum(samples)} samples")
        return samples


def load_settings(path: Path, overrides: Sequence[str]) -> tuple[RunConfig, Flower]:
    """Return the config of a federation and its engine.

    Raises `ConfigError` if the config is not for nodes.
    """
    config = load_config(path, overrides=overrides).config
    engine = config.engine
    if not isinstance(engine, Flower):
        raise ConfigError(f"{path}: is {engine.configured_as!r}: nodes are trained by 'flower'", key="engine.type")
    if config.partition.configured_as.rpartition(":")[2] != PARTITION:
        found = config.partition.configured_as
        raise ConfigError(f"{path}: is {found!r}: samples of nodes are {PARTITION!r}", key="partition.type")
    keys = read_client_keys(engine.folder)
    clients = getattr(config.partition, "clients", 0)
    if len(keys) != clients:
        raise ConfigError(
            f"{path}: is {clients}, and {len(keys)} nodes have a key: to revoke one, rename its file to *.revoked, "
            "which keeps its place",
            key="partition.clients",
        )
    return config, engine


def read_registered_samples(path: Path) -> list[int] | None:
    """Return the sample counts registered for an unfinished run, or None.

    The run is at `path`.
    """
    try:
        tree = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return None
    found: list[int] | None = tree.get("partition", {}).get("samples")
    return found


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the config that `flwr run` names.

    This is for users who operate their own SuperLink.
    """
    assert isinstance(grid, HttpGrid)
    out = context.run_config.get("out")
    config = Path(str(context.run_config["config"]))
    federated = FederatedRun(config, None if out is None else Path(str(out)))
    federated.play(bound_grid(grid))
