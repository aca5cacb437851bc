"""Data of a federation: loaded, reserved for the server, shared out among the clients, and turned into tensors."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.config.schema import Reserve, ReserveSamples
from crfl_core.errors import ConfigError, PluginFailure
from crfl_core.plugin_api.partitioner import check_partition
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.plugin_loading.mutation_guard import arrays_in, fingerprint
from crfl_core.records.input_rows import as_rows
from crfl_core.records.inputs import Data, DataFacts, FederatedData, as_floats, is_local
from crfl_core.records.ledger import FittedFacts, SetFacts
from crfl_core.training.features import load_or_compute_features

if TYPE_CHECKING:
    from crfl_core.config import RunConfig
    from crfl_core.plugin_api.dataset import Dataset
    from crfl_core.plugin_api.feature_map import FeatureMaps
    from crfl_core.records.random_streams import Streams
    from crfl_core.records.round import State


class Partition(NamedTuple):
    """Training rows of each client, and the clients' names if they have any."""

    rows: tuple[NDArray[np.int64], ...]
    names: tuple[str, ...]


def load_data(config: RunConfig, streams: Streams) -> tuple[Data, Partition, dict[str, ReservedSamples]]:
    """Load the clients' data, their partition and the server's reserved samples.

    The data are scaled.
    """
    with errors_of("dataset", config.dataset):
        data = load_dataset(config.dataset)
    data, kept = reserve_samples(config.reserve, data, streams)
    partitioner = config.partition
    with errors_of("partition", partitioner):
        rows = partitioner.split(data, streams)
        if rows and not any(map(is_local, rows)):  # the server's own samples are for tests
            data = replace(data, x=data.kept_x[:0], y=data.y[:0], groups=None)
        check_partition(rows, len(data.y), partitioner)
        names = partitioner.client_names(data, rows)
        if names and len(names) != len(rows):
            raise PluginFailure(
                f"partition: {partitioner.full_name} must name every client or none, found {len(names)} names "
                f"for {len(rows)} clients"
            )
    return data, Partition(rows, names), kept


def as_tensors(data: Data, partition: Partition, device: torch.device, dtype: torch.dtype) -> FederatedData:
    """Return the data on the device that trains."""
    test_x, test_y = as_samples(ReservedSamples(data.test_x, data.test_y), device, dtype)
    return FederatedData(
        input_rows=as_rows(data.kept_x, device, dtype),
        y=torch.from_numpy(data.y.astype(np.int64)).to(device),
        test_x=test_x,
        test_y=test_y,
        partition=partition.rows,
        facts=DataFacts(test_x.shape[1], len(data.class_names), data.domain, data.image_shape),
        class_names=data.class_names,
        feature_names=data.feature_names,
        client_names=partition.names,
        classes_found=data.classes_found,
    )


def as_samples(kept: ReservedSamples, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return inputs and labels as tensors."""
    return as_rows(kept.x, device, dtype), torch.from_numpy(kept.y.astype(np.int64)).to(device)


class ReservedSamples(NamedTuple):
    """Scaled samples before any feature map."""

    x: NDArray[np.generic]
    y: NDArray[np.int64]


def reserve_samples(reserve: Reserve, data: Data, streams: Streams) -> tuple[Data, dict[str, ReservedSamples]]:
    """Split the data into the clients' and the server's.

    Return the data that are left for the clients, and what the server keeps, by name. No sample is in two of them.
    """
    order = streams.generator("data/reserve").permutation(len(data.y))
    taken = 0
    kept = {}
    x = data.kept_x
    for name, wanted in reserve.sets.items():
        if isinstance(wanted, ReserveSamples):
            kept[name] = load_reserve(name, wanted, data, streams)
        elif wanted is not None:
            count = wanted if isinstance(wanted, int) else max(1, round(wanted * len(order)))
            rows = order[taken : taken + count]
            kept[name] = ReservedSamples(as_floats(x[rows]), data.y[rows])
            taken = taken + count
            if taken >= len(order):
                raise ConfigError(
                    f"nothing is left for the clients: {taken} of {len(order)} training samples are reserved",
                    key=f"reserve.{name}",
                )
    if not taken:
        return data, kept
    left = np.sort(order[taken:])
    groups = None if data.groups is None else data.groups[left]
    return replace(data, x=x[left], y=data.y[left], groups=groups), kept


def load_reserve(name: str, wanted: ReserveSamples, data: Data, streams: Streams) -> ReservedSamples:
    """Load samples of another dataset, like those of the run.

    For a curator only the inputs must be alike.
    """
    table = f"reserve.{name}.dataset"
    with errors_of(table, wanted.dataset):
        other = wanted.dataset.load()
    x = other.x
    inputs = data.test_x.shape[1]
    if x.shape[1] != inputs:
        found = f"its inputs have {x.shape[1]} features, those of the run {inputs}"
        raise ConfigError(found, key=table)
    if data.domain.outside(x).any():
        low = data.domain.low
        high = data.domain.high
        raise ConfigError(f"its inputs leave [{low:g}, {high:g}], the domain of the run: scale it alike", key=table)
    if name != "curator" and other.class_names != data.class_names:
        raise ConfigError(f"its classes are not those of the run, {', '.join(data.class_names)}", key=table)
    available = len(x)
    count = wanted.samples or len(x)
    if count > available:
        raise ConfigError(f"found {count}, but there are only {available}", key=f"reserve.{name}.samples")
    rows = streams.generator(f"data/reserve-{name}").permutation(available)[:count]
    return ReservedSamples(x[rows], other.y[rows])


def plugins_using_reserve(config: RunConfig, name: str, fitted: Iterable[FittedFacts]) -> Iterator[str]:
    """Yield the plugins that are handed a reserved set.

    The name `model.start` says that the start model is trained on the set. Measuring on the set does not count: no
    certificate rests on that.
    """
    if config.model.start == "reserve" and name in config.reserve.labelled:
        yield "model.start"
    if name == "root":
        yield from (step.configured_as for step in config.aggregation if type(step).needs_root)
    if name == "curator":
        yield from (one.feature_map for one in fitted if one.source == "curator")


def check_root(config: RunConfig) -> None:
    """Raise `ConfigError` if a step lacks the server's trusted samples."""
    for position, step in enumerate(config.aggregation):
        if type(step).needs_root and config.reserve.root is None:
            raise ConfigError(
                f"is missing: {step.configured_as!r}, aggregation.{position}, learns from samples that the server "
                "trusts: set it to their number, such as 100",
                key="reserve.root",
            )


@dataclass(frozen=True)
class TestSet:
    """Samples behind the feature maps, (m, features), with their true labels."""

    __test__ = False  # not for pytest

    features: Tensor
    labels: Tensor
    facts: SetFacts


def make_test_sets(config: RunConfig, data: FederatedData, maps: FeatureMaps, prepared: State) -> dict[str, TestSet]:
    """Return the test sets of a run by name.

    There is the clean one and, if the attack has one, the backdoored one.
    """
    sets = {"clean": make_test_set(load_or_compute_features(maps, data.test_x), data.test_y)}
    if config.attack is not None:
        with errors_of("attack", config.attack):
            backdoored = config.attack.backdoor_test_set(data, prepared)
        if backdoored is not None:
            sets["backdoored"] = make_test_set(load_or_compute_features(maps, backdoored[0]), backdoored[1])
    return sets


def make_reserve_sets(kept: Mapping[str, tuple[Tensor, Tensor]], maps: FeatureMaps) -> dict[str, TestSet]:
    """Return what the server keeps for itself, behind the maps.

    The curator's inputs stay as they are.
    """
    return {
        name: make_test_set(x if name == "curator" else load_or_compute_features(maps, x), labels)
        for name, (x, labels) in kept.items()
    }


def make_test_set(features: Tensor, labels: Tensor) -> TestSet:
    """Return a test set with its digest.

    Stored votes are matched to the test set by this digest.
    """
    digest = hashlib.sha256()
    for tensor in (features, labels):
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
    return TestSet(features, labels, SetFacts(samples=len(labels), digest=digest.hexdigest()))


class DatasetCache:
    """Cache of the dataset that was read last. Another one takes its place, so no more than one is kept."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._kept: tuple[object, Data, list[bytes]] | None = None

    def take(self, dataset: Dataset) -> Data:
        """Return a dataset's data, from the cache if its options match.

        Cached data that were changed since are read again.
        """
        asked = type(dataset), dataset.model_dump_json()
        with self._asking:
            if self._kept is not None and self._kept[0] == asked and self._kept[2] == marks(self._kept[1]):
                return self._kept[1]
            self._kept = None
            data = dataset.load()
            self._kept = asked, data, marks(data)
            return data


DATASET_CACHE: ContextVar[DatasetCache | None] = ContextVar("SHELF", default=None)
"""Data that runs of this thread share; None: every run reads its own."""


@contextmanager
def reading_once() -> Iterator[None]:
    """Share datasets among the runs within this block.

    Runs that use a dataset with the same options do not read it again. Threads share it too, if they are started with a
    copy of the context.
    """
    before = DATASET_CACHE.set(DatasetCache())
    try:
        yield
    finally:
        DATASET_CACHE.reset(before)


def load_dataset(dataset: Dataset) -> Data:
    """Return the data of a dataset.

    They are read now or taken from the cache.
    """
    shelf = DATASET_CACHE.get()
    return dataset.load() if shelf is None else shelf.take(dataset)


def marks(data: Data) -> list[bytes]:
    """Return a mark of every array that could be written to."""
    import torch

    arrays = (leaf for leaf in arrays_in(data) if isinstance(leaf, np.ndarray))
    return [fingerprint(torch.from_numpy(array)).tobytes() for array in arrays if array.flags.writeable and array.size]
