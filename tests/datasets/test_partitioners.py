"""Partitioners: every training sample to exactly one client, as uneven as their options say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from crfl_datasets.digits import Digits
from crfl_datasets.partitioners.natural import Natural
from crfl_datasets.partitioners.random_splits import Dirichlet, Iid, LabelSkew, QuantitySkew, Shards
from hypothesis import event, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crfl_core.extend import ConfigError, Data, DataError, OptionError, Partitioner, PluginFailure, Streams
from crfl_core.plugin_api.dataset import check_data
from tests.oracle import federation_of, tiny

DIGITS = Digits(train_samples=400).load()
DATA = replace(DIGITS, groups=np.arange(400) ** 2 % 23, group_names=tuple(f"town {number}" for number in range(23)))

CLIENTS = st.integers(1, 450)
FEW = st.integers(1, 30)
ALPHA = st.floats(1e-3, 1e3)
PARTITIONERS = st.one_of(
    st.builds(Iid, clients=CLIENTS),
    st.builds(Dirichlet, clients=CLIENTS, alpha=ALPHA, equal_sizes=st.booleans(), min_samples=FEW, attempts=st.just(3)),
    st.builds(Shards, clients=CLIENTS, shards=st.integers(1, 5)),
    st.builds(LabelSkew, clients=CLIENTS, classes=st.integers(1, 12)),
    st.builds(QuantitySkew, clients=CLIENTS, alpha=ALPHA, min_samples=FEW),
    st.builds(Natural, min_samples=FEW, small_groups=st.sampled_from(["refuse", "merge"])),
)


@settings(deadline=None, max_examples=150)
@given(partitioner=PARTITIONERS, seed=st.integers(0, 100), samples=st.integers(1, 400))
def test_every_sample_has_exactly_one_owner_and_no_client_is_empty_or_an_error_names_an_option(
    partitioner: Partitioner, seed: int, samples: int
) -> None:
    data = first(samples)
    try:
        parts = partitioner.split(data, Streams(seed))
    except OptionError as error:
        blamed = error.option
        event(f"{type(partitioner).__name__}: {blamed}")
        assert blamed in type(partitioner).model_fields
        return
    assert all(part.dtype == np.int64 for part in parts)
    assert min(map(len, parts)) >= getattr(partitioner, "min_samples", 1)
    assert len(parts) == getattr(partitioner, "clients", len(parts))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(samples))
    assert len(partitioner.client_names(data, parts)) in (0, len(parts))


def first(samples: int) -> Data:
    """The first samples only, among which a class or a group may be missing."""
    assert DATA.groups is not None
    return replace(DATA, x=DATA.x[:samples], y=DATA.y[:samples], groups=DATA.groups[:samples])


def counts(partitioner: Partitioner, data: Data = DATA, seed: int = 0) -> NDArray[np.int64]:
    """Samples of each class at each client, (clients, classes)."""
    return np.array([np.bincount(data.y[rows], minlength=10) for rows in partitioner.split(data, Streams(seed))])


@pytest.mark.parametrize(
    "partitioner",
    [
        Iid(clients=7),
        Dirichlet(clients=7),
        Dirichlet(clients=7, equal_sizes=True),
        Shards(clients=7),
        LabelSkew(clients=7),
        QuantitySkew(clients=7),
    ],
)
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


@pytest.mark.parametrize("partitioner", [Dirichlet(clients=8, alpha=0.5, min_samples=20), QuantitySkew(min_samples=15)])
def test_min_samples_are_guaranteed(partitioner: Partitioner) -> None:
    parts = partitioner.split(DATA, Streams(3))
    assert min(map(len, parts)) >= getattr(partitioner, "min_samples")  # noqa: B009


def test_equal_sizes_leave_only_the_mixtures_uneven() -> None:
    skewed, mixed = (counts(Dirichlet(clients=8, alpha=alpha, equal_sizes=True)) for alpha in (0.1, 1e4))
    for held in (skewed, mixed):
        assert set(held.sum(axis=1)) == {50}
    assert np.median(skewed.max(axis=1)) > 30 > 15 > np.median(mixed.max(axis=1))


def test_shards_are_equal_and_cut_from_sorted_samples() -> None:
    parts = Shards(clients=25, shards=1).split(DATA, Streams(0))
    assert sorted(np.sort(DATA.y[rows]).tolist() for rows in parts) == np.sort(DATA.y).reshape(25, 16).tolist()
    held = counts(Shards(clients=5, shards=2))
    assert set(held.sum(axis=1)) == {80}
    assert (held > 0).sum(axis=1).mean() < 5  # a shard of 40 samples seldom meets more than two classes


def test_clients_of_a_label_skew_hold_so_many_classes_and_share_them_equally() -> None:
    held = counts(LabelSkew(clients=13, classes=3))
    assert set((held > 0).sum(axis=1)) == {3}
    for of_class in held.T:
        shares = of_class[of_class > 0]
        assert shares.max() - shares.min() <= 1


def test_a_label_skew_gives_every_class_to_a_client_even_if_clients_are_few() -> None:
    for clients, classes in ((4, 3), (5, 2), (10, 1), (2, 9), (1, 10)):
        held = counts(LabelSkew(clients=clients, classes=classes))
        assert (held.sum(axis=0) == np.bincount(DATA.y)).all()
        assert set((held > 0).sum(axis=1)) == {classes}


def test_sizes_of_a_quantity_skew_are_uneven_and_mixtures_are_not() -> None:
    even, uneven = (counts(QuantitySkew(clients=8, alpha=alpha)) for alpha in (1e6, 0.3))
    assert np.ptp(even.sum(axis=1)) <= 2
    assert uneven.sum(axis=1).max() > 150
    largest = uneven[uneven.sum(axis=1).argmax()]
    assert largest.min() > 0.5 * largest.mean()


def test_natural_clients_are_the_groups_and_carry_their_names() -> None:
    natural = Natural()
    parts = natural.split(DATA, Streams(0))
    assert DATA.groups is not None
    for rows, name in zip(parts, natural.client_names(DATA, parts), strict=True):
        assert {DATA.group_names[group] for group in DATA.groups[rows]} == {name}
    assert len(parts) == len(np.unique(DATA.groups)) == 12  # the squares modulo 23
    assert natural.client_names(replace(DATA, group_names=()), parts) == ()


def test_small_groups_become_one_client_together() -> None:
    groups = np.repeat([0, 1, 2, 3], [5, 190, 7, 198])
    data = replace(DATA, groups=groups, group_names=("A", "B", "C", "D"))
    natural = Natural(min_samples=10, small_groups="merge")
    parts = natural.split(data, Streams(0))
    assert [len(rows) for rows in parts] == [190, 198, 12]
    assert natural.client_names(data, parts) == ("B", "D", "2 others")


@pytest.mark.parametrize(
    ("options", "groups", "message"),
    [
        ({}, None, "type: natural needs a dataset that says where each sample comes from"),
        (
            {"min_samples": 6},
            [5, 395],
            "min_samples: 1 of 2 groups have fewer than 6 samples, 'town 0' has 5: lower it",
        ),
        (
            {"min_samples": 20, "small_groups": "merge"},
            [5, 6, 389],
            "min_samples: the 2 groups with fewer than 20 samples have only 11 together: lower it",
        ),
    ],
)
def test_groups_that_do_not_fit_say_what_to_change(
    options: dict[str, Any], groups: list[int] | None, message: str
) -> None:
    owners = None if groups is None else np.repeat(np.arange(len(groups)), groups)
    with pytest.raises(OptionError, match=re.escape(message)):
        Natural(**options).split(replace(DATA, groups=owners), Streams(0))


@pytest.mark.parametrize(
    ("groups", "names"), [([0, 1], ()), ([-1] * 400, ()), ([2] * 400, ("A", "B"))], ids=["few", "negative", "unnamed"]
)
def test_a_dataset_with_groups_that_make_no_sense_is_refused(groups: list[int], names: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="every training sample needs a group, an integer from 0 on, named if"):
        check_data(replace(DATA, groups=np.array(groups), group_names=names), "towns")


@pytest.mark.parametrize(
    ("partitioner", "message"),
    [
        (Iid(clients=401), "clients: found 401, but there are only 400 training samples"),
        (Dirichlet(clients=41, min_samples=10), "clients: found 41, but there are only 400 training samples, and each"),
        (Shards(clients=90, shards=5), "clients: found 90, but there are only 400 training samples, and each needs 5"),
        (QuantitySkew(clients=3, min_samples=150), "clients: found 3, but there are only 400 training samples, and"),
        (LabelSkew(classes=11), "classes: found 11, but the training samples have only 10"),
        (
            LabelSkew(clients=3, classes=3),
            "classes: 3 clients with 3 classes each cannot hold all 10 classes: use more",
        ),
        (LabelSkew(clients=250, classes=3), "that hold it: use fewer clients or fewer classes"),
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


class Misnaming(Partitioner):
    """Has one client and two names."""

    def split(self, data: Data, streams: Streams) -> tuple[NDArray[np.int64], ...]:
        return (np.arange(len(data.x)),)

    def client_names(self, data: Data, partition: Sequence[NDArray[np.int64]]) -> tuple[str, ...]:
        return ("one", "two")


def test_the_core_refuses_a_partitioner_that_breaks_the_contract() -> None:
    with pytest.raises(PluginFailure, match="every training sample to exactly one client"):
        federation_of(tiny(partition={"type": "doubling"}), {"doubling": Doubling})
    with pytest.raises(ConfigError, match="client 1 of 2 got no samples: use another partitioner"):
        federation_of(tiny(partition={"type": "starving"}), {"starving": Starving})
    with pytest.raises(PluginFailure, match="must name every client or none, found 2 names for 1 clients"):
        federation_of(tiny(partition={"type": "misnaming"}), {"misnaming": Misnaming})
