"""The node: its file, the training beside its own data, and the client app that `crfl federation join` runs."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from pydantic import Field, ValidationError
from torch import Tensor

from crfl_core.config import load_config
from crfl_core.errors import ConfigError, DataError
from crfl_core.plugin_api.engine import Job
from crfl_core.records.inputs import Data
from crfl_core.records.table import Table
from crfl_core.runs.run import open_job
from crfl_flower.messages import RegistrationRequest, TrainingOrder

NODE_FILE_KEY = "node-file"
"""Key of the SuperNode's configuration that holds the path of the node file."""

SERVER_TABLES = {"attack", "groups", "reserve", "engine", "trackers", "threat"}
"""Tables of a config that do not describe how a single client trains."""


class NodeFile(Table):
    """Settings of a node. They stay on the node; paths are relative to the folder of the file."""

    server: str = Field(pattern=r"^.+:[0-9]+$", description="host:port of `crfl federation serve`")
    certificate: Path = Field(Path("ca.crt"), description="of the authority that the server's certificate is from")
    key: Path = Field(Path("node.key"), description="the private key; the server knows the public one")
    allow: tuple[str, ...] = Field(
        (), description="what a server may have this node load besides crfl itself, as distribution[:plugin]"
    )
    threads: int = Field(1, ge=1, description="threads of PyTorch")
    dataset: dict[str, Any] = Field(description="the node's own samples: any dataset plugin with its options")


class Node:
    """A node that answers the server. It reads its data once and prepares training once for all rounds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = read_node_file(path)
        self._data: Data | None = None
        self._jobs: dict[str, Job] = {}

    @property
    def folder(self) -> Path:
        """Return the folder of the node file, which relative paths start from."""
        return self.path.absolute().parent

    @property
    def data(self) -> Data:
        """Return the node's own samples."""
        if self._data is None:
            self._data = load_config({"dataset": self._dataset_settings}).config.dataset.load()
        return self._data

    def train(self, order: TrainingOrder) -> Tensor:
        """Return the updates (K, P) of this client."""
        if order.specification not in self._jobs:
            self._jobs = {order.specification: self._open_job(order)}  # the job of an earlier run is not kept
        torch.set_num_threads(self.file.threads)
        part = slice(order.client, order.client + 1)
        return self._jobs[order.specification].train(order.to_task(), part).updates[:, 0]

    def _open_job(self, order: TrainingOrder) -> Job:
        """Prepare the training that the server describes.

        The training uses the node's samples, and allowed plugins only. Raises `DataError` if the node has fewer samples
        than it registered.
        """
        tree = tomllib.loads(order.specification)
        samples = tree["partition"]["samples"][order.client]
        if samples > len(self.data.x):
            raise DataError(f"{self.path}: {samples} samples were registered, but there are {len(self.data.x)} now")
        own = {
            "dataset": {**self._dataset_settings, "train_samples": samples},
            "partition": {**tree["partition"], "client": order.client},
            "plugins": {"allow": list(self.file.allow)},
        }
        return open_job(tomli_w.dumps(tree | own))

    @property
    def _dataset_settings(self) -> dict[str, Any]:
        """Return the dataset table with the paths in it made absolute."""
        return {
            key: str(self.folder / value) if key.endswith("path") else value for key, value in self.file.dataset.items()
        }


def specification_for_nodes(specification: str) -> str:
    """Return the part of a run's description that nodes receive.

    It holds no data of the server, only the seed of batches, and lets every client take part in every round. Raises
    `ConfigError` if it would reveal what must stay with the server, or lack what nodes need.
    """
    tree = tomllib.loads(specification)
    if "batches" not in tree.get("seeds", {}):
        raise ConfigError(
            "is missing: nodes receive it and must not learn `seed`, from which the noise is drawn: set it to "
            "another number",
            key="seeds.batches",
        )
    if "curator" in tree.get("reserve", {}):
        raise ConfigError(
            "feature maps that are fitted to the server's samples cannot be rebuilt by nodes: use a fixed map, such as "
            "'unit-ball'",
            key="reserve.curator",
        )
    settings = {
        key: value for key, value in tree.items() if key not in SERVER_TABLES | {"dataset", "seed", "votes", "name"}
    }
    settings["seeds"] = {"batches": tree["seeds"]["batches"]}
    # Orders bring the model to start from.
    settings["model"] = {key: value for key, value in tree.get("model", {}).items() if key != "start"}
    settings["training"] = {**tree.get("training", {}), "participation": 1.0}
    # Who is assumed to attack has no meaning for one client; a federation whose data are elsewhere must state it.
    settings["threat"] = {"clients": 0, "rounds": "every"}
    return tomli_w.dumps(settings)


def read_node_file(path: Path) -> NodeFile:
    """Read a node file. Raises `ConfigError` with the key that is wrong."""
    try:
        return NodeFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or first.get("ctx", {}).get("key", "")
        raise ConfigError(f"{path}: {key}: {first['msg']}: `crfl federation init` writes files that work") from error


@cache
def open_node(path: Path) -> Node:
    """Return the node of a file, which is read once per process."""
    return Node(path)


app = ClientApp()


@app.query()
def register(message: Message, context: Context) -> Message:
    """Answer with the number of samples of this node."""
    return build_reply(message, RegistrationRequest.from_message(message).build_reply(find_node(context).data))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train from the server's model and answer with the update."""
    order = TrainingOrder.from_message(message)
    return build_reply(message, order.build_reply(find_node(context).train(order)))


def build_reply(message: Message, content: RecordDict) -> Message:
    """Return the reply to a message."""
    return Message(content, reply_to=message)


def find_node(context: Context) -> Node:
    """Return the node for which this SuperNode was started."""
    return open_node(Path(str(context.node_config[NODE_FILE_KEY])))
