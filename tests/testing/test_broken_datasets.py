"""Datasets and partitioners that are broken in one way each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.extend import Data, DataError, Dataset, Domain, Partitioner, Plugin, Streams
from crfl_core.testing.sample_run import Spots
from tests.testing.support import assert_fails, checks_of, verdict

Rows = tuple[NDArray[np.int64], ...]


class Uneven(Spots):
    """Has fewer labels than inputs."""

    def read(self) -> Data:
        data = super().read()
        return replace(data, y=data.y[:-1])


class Fractional(Spots):
    """Has labels that are not integers."""

    def read(self) -> Data:
        data = super().read()
        return replace(data, y=data.y.astype(np.float64))


class EmptyClass(Spots):
    """Names a class that no training sample has."""

    def read(self) -> Data:
        data = super().read()
        return replace(data, class_names=(*data.class_names, "nothing"))


class WrongShape(Spots):
    """Says that its images are larger than they are."""

    def read(self) -> Data:
        return replace(super().read(), image_shape=(1, 28, 28))


class TooNarrow(Spots):
    """Declares a domain that does not contain the data."""

    def read(self) -> Data:
        return replace(super().read(), domain=Domain(0.0, 0.1))


class Shrunk(Spots):
    """Declares a narrower domain than the one that its inputs were scaled to."""

    def load(self) -> Data:
        return replace(super().load(), domain=Domain(0.0, 0.1))


class Reversed(Spots):
    """Draws other samples if fewer are wanted."""

    def read(self) -> Data:
        data = super().read()
        return data if self.train_samples is None else replace(data, x=data.x[::-1])


class Vast(Spots):
    """Has numbers that are lost in single precision."""

    def read(self) -> Data:
        data = super().read()
        return replace(data, x=data.x.astype(np.float64) * 1e300, domain=Domain(0.0, 1e300))


class BrightTests(Spots):
    """Has test inputs beyond the domain of the training inputs."""

    def read(self) -> Data:
        data = super().read()
        return replace(data, test_x=data.test_x.astype(np.float64) + 0.5)


class Leaking(Spots):
    """Tests on what it trains on."""

    def read(self) -> Data:
        data = super().read()
        return replace(data, test_x=data.x[::-5].copy(), test_y=data.y[::-5].copy())


DATASETS: dict[str, list[tuple[Plugin, str]]] = {
    "arrays_fit_together": [(Uneven(), "with one label each"), (Fractional(), "y.astype(np.int64)")],
    "labels_are_used": [(EmptyClass(), "none of 'nothing'")],
    "facts_match_the_arrays": [(WrongShape(), "an image_shape of 64 numbers")],
    "domain_contains_the_data": [
        (TooNarrow(scaling="none"), "declare a wider domain"),
        (BrightTests(scaling="none"), "raw test inputs within [0, 1]"),
    ],
    "norm_bound_holds": [(Shrunk(), "norms up to 0.8")],
    "test_samples_are_not_for_training": [(Leaking(), "split before")],
    "subsets_are_the_first_samples": [(Reversed(), "the first rows of the whole")],
    "every_scaling_works": [(Vast(), "for scaling = 'none'")],
}


class Fair(Partitioner):
    """Deals samples out in turn."""

    clients: int = Field(4, ge=1, description="number of clients")

    def split(self, data: Data, streams: Streams) -> Rows:
        return tuple(np.arange(client, len(data.x), self.clients) for client in range(self.clients))


class Forgetful(Fair):
    """Leaves the last client out."""

    def split(self, data: Data, streams: Streams) -> Rows:
        return super().split(data, streams)[:-1]


class Greedy(Fair):
    """Gives everything to the first client."""

    def split(self, data: Data, streams: Streams) -> Rows:
        return np.arange(len(data.x)), *(np.arange(0) for _ in range(self.clients - 1))


class TooFew(Fair):
    """Makes one client fewer than it was told."""

    def split(self, data: Data, streams: Streams) -> Rows:
        first, second, *others = super().split(data, streams)
        return np.concatenate([first, second]), *others


class Relabelling(Fair):
    """Sorts the labels, and leaves the inputs as they are."""

    def split(self, data: Data, streams: Streams) -> Rows:
        data.y.sort()
        return super().split(data, streams)


class HalfNamed(Fair):
    """Names one client only."""

    def client_names(self, data: Data, partition: Sequence[NDArray[np.int64]]) -> tuple[str, ...]:
        return ("first",)


PARTITIONERS: dict[str, list[tuple[Plugin, str]]] = {
    "every_sample_has_one_owner": [(Forgetful(), "0 for sample 3")],
    "no_client_is_empty": [(Greedy(), "none for client 1")],
    "makes_that_many_clients": [(TooFew(), "4 clients")],
    "keeps_data": [(Relabelling(), "unchanged y")],
    "every_client_has_a_name_or_none_has": [(HalfNamed(), "4 names or none")],
}
EXAMPLES = [
    (check, plugin, word)
    for kind in (DATASETS, PARTITIONERS)
    for check, examples in kind.items()
    for plugin, word in examples
]


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize(
    ("check", "plugin", "word"), EXAMPLES, ids=[type(plugin).__name__ for _, plugin, _ in EXAMPLES]
)
def test_broken_data_are_told_what_to_fix(check: str, plugin: Plugin, word: str) -> None:
    assert_fails(plugin, check, word)


def test_every_check_has_a_plugin_that_fails_it() -> None:
    assert set(DATASETS) == checks_of(Dataset)
    assert set(PARTITIONERS) == checks_of(Partitioner)


class Absent(Spots):
    """Has files that were not fetched."""

    def read(self) -> Data:
        raise DataError("spots.npz is not here: fetch it")


def test_data_that_are_not_here_are_not_judged() -> None:
    expected = ("skipped", "its data cannot be read here: spots.npz is not here: fetch it")
    assert verdict(Absent(), "norm_bound_holds") == verdict(Absent(), "answers_are_repeatable") == expected
