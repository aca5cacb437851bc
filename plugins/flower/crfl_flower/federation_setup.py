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


PUBLIC_SEEDS = ("data", "initial", "batches")
"""Seeds of what clients see anyway: their samples, the model of round 1, and the order of their batches."""


def write_federation(folder: Path, config: Path | None, address: str, overrides: Sequence[str]) -> list[Path]:
    """Write the files of the server and of every node.

    The folder must be new or empty. Return the node files. Each client of the experiment becomes a node, with its share
    of the samples in its folder. Only the owner of the files can read them. The server gets a seed that cannot be
    guessed, unless `overrides` set one.
    """
    from crfl_flower.keys import private_files

    if folder.exists() and any(folder.iterdir()):
        raise StoreError(f"{folder}: is not empty: name a folder that is not there yet")
    loaded = load_config(FIRST_TRY if config is None else config, overrides=overrides)
    secret_seed = not any(override.partition("=")[0].strip() == "seed" for override in overrides)
    with private_files():
        return write_files(folder, loaded, address, secret_seed=secret_seed)


def write_files(folder: Path, loaded: LoadedConfig, address: str, *, secret_seed: bool) -> list[Path]:
    """Write keys, certificates, samples and settings; return the node files."""
    from crfl_flower.keys import write_authority, write_node_key

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
    tree = server_settings(loaded.config, server.absolute(), address, max(map(len, shares)))
    if secret_seed:  # noise, participants and random rules are drawn from it: attackers must not know it
        tree["seed"] = secrets.randbits(63)
        tree["seeds"] = {name: seed for name, seed in tree["seeds"].items() if name in PUBLIC_SEEDS or seed == "secret"}
    (server / "config.toml").write_text(tomli_w.dumps(tree), encoding="utf-8")
    return files


def partition_data(loaded: LoadedConfig) -> tuple[Data, tuple[NDArray[np.int64], ...]]:
    """Return the data of an experiment and each client's sample rows."""
    config = loaded.config
    if any(wanted is not None for wanted in config.reserve.sets.values()):
        raise loaded.origins.locate(
            ConfigError("belongs to the server alone: write it into its config later", key="reserve")
        )
    data = config.dataset.load()
    seeds = {} if config.seeds.data is None else {"data": config.seeds.data}
    return data, config.partition.split(data, Streams(config.seed, seeds))


def node_dataset(data: Data) -> dict[str, Any]:
    """Return the dataset table of a node.

    It names the samples file beside it and the domain of the experiment, so a node scales its inputs alike.
    """
    table: dict[str, Any] = {"type": "arrays", "path": "samples.npz", "class_names": list(data.class_names)}
    domain = [data.domain.low, data.domain.high]
    return table | ({"domain": domain} if np.isfinite(domain).all() else {})


def server_settings(config: RunConfig, folder: Path, address: str, most: int) -> dict[str, Any]:
    """Return the server's config.

    It has remote clients, the Flower engine, a stated threat and no simulated attack.
    """
    tree = tomllib.loads(dump_config(config, without={"attack", "engine"}))
    clients = len(list((folder / "nodes").glob("*.pub")))
    host, _, port = address.rpartition(":")
    listening = address if host in ("127.0.0.1", "localhost") else f"0.0.0.0:{port}"
    seeds = tree.get("seeds", {})
    tree["partition"] = {"type": "remote", "clients": clients, "max_samples": most}
    tree["seeds"] = {"batches": secrets.randbits(32)} | seeds
    tree["threat"] = {"clients": 1, "rounds": "every", "poison": "update"} | tree.get("threat", {})
    tree["engine"] = {"type": "flower", "folder": str(folder), "address": listening}
    return tree
