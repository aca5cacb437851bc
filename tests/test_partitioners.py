"""Partitioners: every training sample to exactly one client."""

from __future__ import annotations

import re

import numpy as np
import pytest
from crfl_datasets.digits import Digits
from crfl_datasets.partitioners.dirichlet import Dirichlet
from crfl_datasets.partitioners.iid import Iid
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crfl_core import ConfigError, Data, OptionError, Partitioner, PluginFailure, Streams
from tests.oracle import federation_of, tiny

DATA = Digits(train_samples=400).load()


@settings(deadline=None, max_examples=20)
@given(
    partitioner=st.one_of(
        st.integers(1, 50).map(lambda clients: Iid(clients=clients)),
        st.integers(1, 15).map(lambda clients: Dirichlet(clients=clients, alpha=0.9)),
    ),
    seed=st.integers(0, 100),
)
def test_every_sample_belongs_to_exactly_one_client_and_nobody_is_empty(partitioner: Partitioner, seed: int) -> None:
    parts = partitioner.split(DATA, Streams(seed))
    assert len(parts) == partitioner.clients
    assert min(map(len, parts)) >= 1
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(400))


@pytest.mark.parametrize("partitioner", [Iid(clients=7), Dirichlet(clients=7)])
def test_the_split_depends_on_the_seed_for_data_alone(partitioner: Partitioner) -> None:
    first, again, other = (
        partitioner.split(DATA, streams) for streams in (Streams(0), Streams(5, {"data": 0}), Streams(0, {"data": 5}))
    )
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


def test_iid_shares_differ_by_at_most_one_sample() -> None:
    sizes = {len(part) for part in Iid(clients=7).split(DATA, Streams(0))}
    assert sizes == {400 // 7, 400 // 7 + 1}


def classes_held(alpha: float) -> float:
    """Mean number of classes of which a client holds at least a twentieth of its samples."""
    parts = Dirichlet(clients=8, alpha=alpha, attempts=10_000).split(DATA, Streams(0))
    shares = [np.bincount(DATA.y[part], minlength=10) / len(part) for part in parts]
    return float(np.mean([(share >= 0.05).sum() for share in shares]))


def test_a_small_alpha_gives_clients_few_classes() -> None:
    assert classes_held(0.1) < classes_held(1.0) < classes_held(100.0)


def test_min_samples_are_guaranteed() -> None:
    parts = Dirichlet(clients=8, alpha=0.5, min_samples=20).split(DATA, Streams(3))
    assert min(map(len, parts)) >= 20


@pytest.mark.parametrize(
    ("partitioner", "message"),
    [
        (Iid(clients=401), "clients: found 401, but there are only 400 training samples"),
        (Dirichlet(clients=41, min_samples=10), "clients: 41 clients cannot share 400 training samples"),
        (Dirichlet(clients=200, alpha=0.01, attempts=2), "in each of 2 draws with alpha = 0.01 and 200 clients"),
    ],
)
def test_impossible_splits_say_what_to_change(partitioner: Partitioner, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        partitioner.split(DATA, Streams(0))


class Doubling(Partitioner):
    """Gives the first sample away twice."""

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        return (np.arange(len(data.x)), np.array([0]))


class Starving(Partitioner):
    """Leaves the second client with nothing."""

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        return (np.arange(len(data.x)), np.array([], np.int64))


def test_the_core_refuses_a_partitioner_that_breaks_the_contract() -> None:
    with pytest.raises(PluginFailure, match="every training sample to exactly one client"):
        federation_of(tiny(partition={"type": "doubling"}), {"doubling": Doubling})
    with pytest.raises(ConfigError, match="client 1 of 2 got no samples: use fewer clients"):
        federation_of(tiny(partition={"type": "starving"}), {"starving": Starving})
