"""Set up a federation from an experiment: keys, certificates, and the files of the server and its nodes."""

from __future__ import annotations

import secrets
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from crfl_core import dump_config
from crfl_core.config import LoadedConfig, RunConfig, load_config
from crfl_core.errors import ConfigError, StoreError
from crfl_core.records.inputs import Data
from crfl_core.records.random_streams import Streams

FIRST_TRY: Mapping[str, Any] = {
    "name": "federation",
    "rounds": 3,
    "dataset": {"type": "digits", "train_samples": 400},
    "partition": {"type": "iid", "clients": 4},
    "model": {"type": "softmax", "features": {"type": "unit-ball"}},
    "training": {"learning_rate": 0.5, "epochs": 1, "batch_size": 20},
    "certificates": [{"type": "pathwise-linear"}],
    "threat": {"clients": 1, "rounds": "every", "poison": "update"},
}
"""Default experiment of `crfl federation init`: the embedded digits, certified against 1 of 4 clients."""


def write_federation(folder: Path, config: Path | None, address: str, overrides: Sequence[str]) -> list[Path]:
    """Write the files of the server and of every node into a new folder; return the node files.

    Each client of the experiment becomes a node, with its share of the samples in its folder.
    """
    from crfl_flower.keys import write_authority, write_node_key

    if folder.exists() and any(folder.iterdir()):
        raise StoreError(f"{folder}: is not empty: name a folder that is not there yet")
    loaded = load_config(FIRST_TRY if config is None else config, overrides=overrides)
    data, shares = partition_data(loaded)
    server = folder / "server"
    width = len(str(len(shares) - 1))
    (server / "nodes").mkdir(parents=True)
    write_authority(server, [address.rpartition(":")[0]])
    files = []
    for client, rows in enumerate(shares):
        node = folder / f"node-{client:0{width}}"
        node.mkdir()
        write_node_key(node / "node.key", server / "nodes" / f"{node.name}.pub")
        (node / "ca.crt").write_bytes((server / "ca.crt").read_bytes())
        np.savez(node / "samples.npz", x=data.x[rows], y=data.y[rows], test_x=data.x[rows[:1]], test_y=data.y[rows[:1]])
        text = {"server": address, "dataset": node_dataset(data)}
        (node / "node.toml").write_text(tomli_w.dumps(text), encoding="utf-8")
        files.append(node / "node.toml")
    # The noise is drawn from the seed, so the default experiment gets a secret one; a given config keeps its own.
    own = loaded.config if config is not None else loaded.config.model_copy(update={"seed": secrets.randbits(32)})
    tree = server_config(own, server.absolute(), address, max(map(len, shares)))
    (server / "config.toml").write_text(tree, encoding="utf-8")
    return files


def partition_data(loaded: LoadedConfig) -> tuple[Data, tuple[NDArray[np.int64], ...]]:
    """Return the data of an experiment and the sample rows of each client."""
    config = loaded.config
    if any(wanted is not None for _, wanted in config.reserve):
        raise loaded.origins.locate(
            ConfigError("belongs to the server alone: write it into its config later", key="reserve")
        )
    data = config.dataset.load()
    seeds = {} if config.seeds.data is None else {"data": config.seeds.data}
    return data, config.partition.split(data, Streams(config.seed, seeds))


def node_dataset(data: Data) -> dict[str, Any]:
    """Return the dataset table of a node, for the samples file beside it, scaled as in the experiment."""
    table: dict[str, Any] = {"type": "arrays", "path": "samples.npz", "class_names": list(data.class_names)}
    domain = [data.domain.low, data.domain.high]
    return table | ({"domain": domain} if np.isfinite(domain).all() else {})


def server_config(config: RunConfig, folder: Path, address: str, most: int) -> str:
    """Return the server's config: remote clients, the Flower engine, a stated threat and no simulated attack."""
    tree = tomllib.loads(dump_config(config, without={"attack", "engine"}))
    clients = len(list((folder / "nodes").glob("*.pub")))
    host, _, port = address.rpartition(":")
    listening = address if host in ("127.0.0.1", "localhost") else f"0.0.0.0:{port}"
    seeds = tree.get("seeds", {})
    tree["partition"] = {"type": "remote", "clients": clients, "max_samples": most}
    tree["seeds"] = {"batches": secrets.randbits(32)} | seeds
    tree["threat"] = {"clients": 1, "rounds": "every", "poison": "update"} | tree.get("threat", {})
    replies = max(1, clients - int(count_attackers(tree["threat"]["clients"])))
    tree["engine"] = {"type": "flower", "folder": str(folder), "address": listening, "min_replies": replies}
    return tomli_w.dumps(tree)


def count_attackers(clients: int | Sequence[int]) -> int:
    """Return the number of clients in a threat."""
    return clients if isinstance(clients, int) else len(clients)
