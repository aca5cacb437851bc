"""Samples that the server trusts: taken out of the training data before anybody gets a share, and whose they become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crfl_core.config import RunConfig
from crfl_core.config.schema import OwnSamples, Reserve
from crfl_core.errors import ConfigError
from crfl_core.plugin_api.plugin_errors import settings_of
from crfl_core.records.inputs import Data, held, made
from crfl_core.records.ledger import FittedFacts
from crfl_core.records.random_streams import Streams


class Kept(NamedTuple):
    """Scaled samples before any feature map."""

    x: NDArray[np.generic]
    y: NDArray[np.int64]


def set_aside(reserve: Reserve, data: Data, streams: Streams) -> tuple[Data, dict[str, Kept]]:
    """The data that are left for the clients, and what the server keeps, by name. No sample is in two of them."""
    order = streams.generator("data/reserve").permutation(len(data.y))
    taken = 0
    kept = {}
    x = held(data, "x")
    for name, wanted in reserve:
        if isinstance(wanted, OwnSamples):
            kept[name] = from_elsewhere(name, wanted, data, streams)
        elif wanted is not None:
            count = wanted if isinstance(wanted, int) else max(1, round(wanted * len(order)))
            rows = order[taken : taken + count]
            kept[name] = Kept(made(x[rows]), data.y[rows])
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


def from_elsewhere(name: str, wanted: OwnSamples, data: Data, streams: Streams) -> Kept:
    """Samples of another dataset, which must be like those of the run; of a curator only the inputs count."""
    table = f"reserve.{name}.dataset"
    with settings_of(table, wanted.dataset):
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
    return Kept(x[rows], other.y[rows])


def users(config: RunConfig, name: str, fitted: Iterable[FittedFacts]) -> Iterator[str]:
    """The plugins that are handed a set. Measuring on it is no use: nothing that is certified rests on that."""
    if name == "root":
        yield from (step.configured_as for step in config.aggregation if type(step).needs_root)
    if name == "curator":
        yield from (one.feature_map for one in fitted if one.source == "curator")


def check_root(config: RunConfig) -> None:
    """Who needs data of the server can have some."""
    for position, step in enumerate(config.aggregation):
        if type(step).needs_root and config.reserve.root is None:
            raise ConfigError(
                f"is missing: {step.configured_as!r}, aggregation.{position}, learns from samples that the server "
                "trusts: set it to their number, such as 100",
                key="reserve.root",
            )
