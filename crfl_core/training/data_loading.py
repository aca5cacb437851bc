"""The data of a federation: loaded, shared out among the clients, and as tensors on the device that trains."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.config import RunConfig
from crfl_core.errors import PluginFailure
from crfl_core.plugin_api.partitioner import check_partition
from crfl_core.plugin_api.plugin_errors import settings_of
from crfl_core.plugin_loading.mutation_guard import fingerprint, leaves
from crfl_core.records.input_rows import as_rows
from crfl_core.records.inputs import Data, DataFacts, FederatedData, held, is_local
from crfl_core.records.random_streams import Streams
from crfl_core.training.reserve import Kept, set_aside

if TYPE_CHECKING:
    from crfl_core.plugin_api.dataset import Dataset
    from crfl_core.records.inputs import Data


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
        if rows and not any(map(is_local, rows)):  # the server's own samples are for tests
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


class Shelf:
    """The dataset that was read last. Another one takes its place, so no more than one is kept for runs to come."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._kept: tuple[object, Data, list[bytes]] | None = None

    def take(self, dataset: Dataset) -> Data:
        """The data of a dataset: what is kept of one with the same options, if it is still what was read."""
        asked = type(dataset), dataset.model_dump_json()
        with self._asking:
            if self._kept is not None and self._kept[0] == asked and self._kept[2] == marks(self._kept[1]):
                return self._kept[1]
            self._kept = None
            data = dataset.load()
            self._kept = asked, data, marks(data)
            return data


SHELF: ContextVar[Shelf | None] = ContextVar("SHELF", default=None)
"""Where runs of this thread look for data before they read them; None: every run reads its own."""


@contextmanager
def reading_once() -> Iterator[None]:
    """Runs within this block that use one dataset with the same options share it instead of reading it again.

    Threads share it too, if they are started with a copy of the context.
    """
    before = SHELF.set(Shelf())
    try:
        yield
    finally:
        SHELF.reset(before)


def data_of(dataset: Dataset) -> Data:
    """The data of a dataset, read here or found on the shelf."""
    shelf = SHELF.get()
    return dataset.load() if shelf is None else shelf.take(dataset)


def marks(data: Data) -> list[bytes]:
    """A mark of every array that could be written to."""
    import torch

    arrays = (leaf for leaf in leaves(data) if isinstance(leaf, np.ndarray))
    return [fingerprint(torch.from_numpy(array)).tobytes() for array in arrays if array.flags.writeable and array.size]
