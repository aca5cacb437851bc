"""Synthetic data: every option does what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from crfl_datasets.synthetic import Synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm as normal

from crfl_core import run
from crfl_core.extend import Data


def nearest_mean_accuracy(data: Data) -> float:
    """Test accuracy of the class with the nearest training mean: the best rule for such classes."""
    x, tests = data.x.astype(np.float64), data.test_x.astype(np.float64)
    means = np.stack([x[data.y == label].mean(axis=0) for label in range(len(data.class_names))])
    nearest = np.linalg.norm(tests[:, None] - means, axis=2).argmin(axis=1)
    return float((nearest == data.test_y).mean())


def group_means(data: Data) -> NDArray[np.float64]:
    assert data.groups is not None
    return np.stack([data.x[data.groups == group].astype(np.float64).mean(axis=0) for group in np.unique(data.groups)])


def test_sizes_and_names_are_as_asked() -> None:
    data = Synthetic(classes=3, features=5, train_samples=70, test_samples=30, groups=7).load()
    assert (data.x.shape, data.test_x.shape) == ((70, 5), (30, 5))
    assert data.x.dtype == np.float32
    assert (len(data.class_names), len(data.feature_names), len(data.group_names)) == (3, 5, 7)
    assert data.groups is not None
    assert np.bincount(data.groups).tolist() == [10] * 7


def test_the_same_seed_gives_the_same_data_and_another_seed_others() -> None:
    first, again, other = Synthetic().load(), Synthetic().load(), Synthetic(seed=1).load()
    np.testing.assert_array_equal(first.x, again.x)
    np.testing.assert_array_equal(first.test_y, again.test_y)
    assert (first.x != other.x).any()


@settings(max_examples=25, deadline=None)
@given(
    norm=st.floats(1e-3, 1e3),
    features=st.integers(1, 40),
    separation=st.floats(0, 20),
    group_shift=st.floats(0, 10),
    seed=st.integers(0, 5),
)
def test_no_input_exceeds_the_norm_and_the_domain_says_so(
    norm: float, features: int, separation: float, group_shift: float, seed: int
) -> None:
    data = Synthetic(
        norm=norm,
        features=features,
        separation=separation,
        group_shift=group_shift,
        seed=seed,
        train_samples=50,
        test_samples=50,
    ).load()
    everything = np.concatenate([data.x, data.test_x]).astype(np.float64)
    assert data.domain.low <= everything.min() <= everything.max() <= data.domain.high
    assert np.linalg.norm(everything, axis=1).max() <= data.domain.norm_bound(features) <= norm
    assert data.domain.norm_bound(features) == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("separation", [0.0, 1.0, 3.0])
def test_two_classes_are_as_hard_to_tell_apart_as_their_separation_says(separation: float) -> None:
    data = Synthetic(classes=2, features=4, separation=separation, train_samples=4000, test_samples=4000).load()
    assert nearest_mean_accuracy(data) == pytest.approx(normal.cdf(separation / 2), abs=0.025)


def test_more_classes_than_features_still_differ() -> None:
    data = Synthetic(classes=6, features=2, separation=30.0).load()
    assert nearest_mean_accuracy(data) > 0.6


def test_groups_are_alike_unless_they_are_shifted() -> None:
    alike, apart = (
        group_means(Synthetic(groups=4, separation=0.0, group_shift=shift, train_samples=4000).load())
        for shift in (0.0, 5.0)
    )
    assert np.ptp(apart, axis=0).max() > 10 * np.ptp(alike, axis=0).max()


def test_a_skewed_group_prefers_a_class_of_its_own() -> None:
    data = Synthetic(groups=4, classes=4, group_skew=1.0).load()
    assert data.groups is not None
    np.testing.assert_array_equal(data.y, data.groups)
    mixed = Synthetic(groups=4, classes=4, group_skew=0.5, train_samples=4000).load()
    assert mixed.groups is not None
    assert (mixed.y == mixed.groups).mean() == pytest.approx(0.5 + 0.5 / 4, abs=0.03)


def test_a_federation_learns_them_with_one_client_per_group(tmp_path: Path) -> None:
    settings = {
        "rounds": 20,
        "dataset": {"type": "synthetic", "classes": 4, "groups": 6, "group_skew": 0.5, "train_samples": 600},
        "partition": {"type": "natural"},
        "attack": "none",
        "training": {"learning_rate": 2.0, "steps": 5, "batch_size": 20},
        "certificates": [],
    }
    result = run(settings, out=tmp_path / "run")
    assert result.ledger.facts.clients == 6
    assert result.ledger.facts.input_norm_bound <= 1.0
    assert result.metrics.accuracy > 0.9
