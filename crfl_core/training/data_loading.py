"""The data of a federation: loaded, shared out among the clients, and as tensors on the device that trains."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.config import RunConfig
from crfl_core.errors import PluginFailure
from crfl_core.plugin_api.partitioner import check_partition
from crfl_core.plugin_api.plugin_errors import settings_of
from crfl_core.plugin_loading.dataset_cache import data_of
from crfl_core.records.input_rows import as_rows
from crfl_core.records.inputs import Data, DataFacts, FederatedData, are_here, held
from crfl_core.records.random_streams import Streams
from crfl_core.training.reserve import Kept, set_aside


class Partition(NamedTuple):
    """The training rows of each client, and the clients' names if they have any."""

    rows: tuple[NDArray[np.int64], ...]
    names: tuple[str, ...]


def load_data(config: RunConfig, streams: Streams) -> tuple[Data, Partition, dict[str, Kept]]:
    """The scaled data of the clients, who holds what of the training samples, and what the server keeps of them."""
    with settings_of("dataset", config.dataset):
        data = data_of(config.dataset)
    data, kept = set_aside(config.reserve, data, streams)
    partitioner = config.partition
    with settings_of("partition", partitioner):
        rows = partitioner.split(data, streams)
        if rows and not any(map(are_here, rows)):  # the server's own samples are for tests
            data = replace(data, x=held(data, "x")[:0], y=data.y[:0], groups=None)
        check_partition(rows, len(data.y), partitioner)
        names = partitioner.client_names(data, rows)
        if names and len(names) != len(rows):
            raise PluginFailure(
                f"partition: {partitioner.full_name} must name every client or none, found {len(names)} names "
                f"for {len(rows)} clients"
            )
    return data, Partition(rows, names), kept


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
