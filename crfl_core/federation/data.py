"""The data of a federation: loaded, shared out among the clients, and as tensors on the device that trains."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.config import RunConfig
from crfl_core.federation.reserve import Kept, set_aside
from crfl_interface.byte_rows import as_rows
from crfl_interface.data import Data, DataFacts, FederatedData, held
from crfl_interface.errors import OptionError, PluginFailure
from crfl_interface.kinds.complaints import settings_of
from crfl_interface.kinds.partitioner import Partitioner
from crfl_interface.streams import Streams


class Partition(NamedTuple):
    """The training rows of each client, and the clients' names if they have any."""

    rows: tuple[NDArray[np.int64], ...]
    names: tuple[str, ...]


def owners_of(data: Data, partition: Partition) -> NDArray[np.int64] | None:
    """The natural owner of each client's data; None if there are no owners, or a client has data of several."""
    if data.groups is None:
        return None
    owners = [np.unique(data.groups[rows]) for rows in partition.rows]
    return np.concatenate(owners) if all(len(each) == 1 for each in owners) else None


def load_data(config: RunConfig, streams: Streams) -> tuple[Data, Partition, dict[str, Kept]]:
    """The scaled data of the clients, who holds what of the training samples, and what the server keeps of them."""
    with settings_of("dataset", config.dataset):
        data = config.dataset.load()
    data, kept = set_aside(config.reserve, data, streams)
    partitioner = config.partition
    with settings_of("partition", partitioner):
        rows = partitioner.split(data, streams)
        check_partition(rows, len(data.y), partitioner)
        names = partitioner.client_names(data, rows)
        if names and len(names) != len(rows):
            raise PluginFailure(
                f"partition: {partitioner.full_name} must name every client or none, found {len(names)} names "
                f"for {len(rows)} clients"
            )
    return data, Partition(rows, names), kept


def check_partition(partition: tuple[NDArray[np.int64], ...], samples: int, plugin: Partitioner) -> None:
    """Every sample belongs to exactly one client and no client is empty."""
    for client, rows in enumerate(partition):
        if len(rows) == 0:
            empty = f"client {client} of {len(partition)} got no samples"
            if "clients" in type(plugin).model_fields:
                raise OptionError("clients", f"{empty}: use fewer clients")
            raise OptionError("type", f"{empty}: use another partitioner")
    counts = np.bincount(np.concatenate(partition), minlength=samples)
    if len(counts) != samples or (counts != 1).any():
        sample = int(np.flatnonzero(counts != (np.arange(len(counts)) < samples))[0])
        raise PluginFailure(
            f"partition: {plugin.full_name} must give every training sample to exactly one client, sample "
            f"{sample} has {counts[sample]}"
        )


def as_tensors(data: Data, partition: Partition, device: torch.device, dtype: torch.dtype) -> FederatedData:
    """The data on the device that trains."""
    test_x, test_y = as_samples(Kept(data.test_x, data.test_y), device, dtype)
    return FederatedData(
        x=as_rows(held(data, "x"), device, dtype),
        y=torch.from_numpy(data.y.astype(np.int64)).to(device),
        test_x=test_x,
        test_y=test_y,
        partition=partition.rows,
        facts=DataFacts(test_x.shape[1], len(data.class_names), data.domain, data.image_shape),
        class_names=data.class_names,
        feature_names=data.feature_names,
        client_names=partition.names,
    )


def as_samples(kept: Kept, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Inputs and labels as tensors."""
    return as_rows(kept.x, device, dtype), torch.from_numpy(kept.y.astype(np.int64)).to(device)
