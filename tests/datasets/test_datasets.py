"""Datasets: what is checked, cut and scaled before training sees it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import sklearn.datasets
from crfl_datasets import digits
from crfl_datasets.digits import Digits
from numpy.typing import NDArray
from pydantic import PrivateAttr

from crfl_core.extend import Data, DataError, Dataset, Domain, OptionError
from crfl_core.plugin_api.dataset import ScalingKind


def table(shift: float = 0.0) -> Data:
    """Twelve training and four test rows, these shifted, of three features, the last of them constant."""
    generator = np.random.default_rng(0)
    x = np.column_stack([generator.uniform(-3, 5, 16), generator.uniform(0, 1, 16), np.full(16, 2.0)])
    labels = np.arange(16) % 2
    return Data(
        x=x[:12],
        y=labels[:12],
        test_x=x[12:] + shift,
        test_y=labels[12:],
        domain=Domain(-4.0, 6.0),
        class_names=("no", "yes"),
        groups=np.arange(12),
    )


class Given(Dataset):
    """Whatever it was handed."""

    _data: Data = PrivateAttr(default_factory=table)

    def read(self) -> Data:
        return self._data


def numbers(array: NDArray[np.generic]) -> NDArray[np.float64]:
    """Inputs of any type as float64."""
    return array.astype(np.float64)


def loaded(data: Data, scaling: ScalingKind = "none") -> Data:
    """The data behind a dataset's checks and scaling."""
    dataset = Given(scaling=scaling)
    dataset._data = data
    return dataset.load()


def test_digits_are_whole_and_split_without_overlap() -> None:
    data = Digits().load()
    assert (len(data.x), len(data.test_x)) == (1438, 359)
    assert data.x.dtype == np.float32
    assert data.image_shape == (8, 8)
    assert set(np.unique(data.y)) == set(range(10))
    assert (float(data.x.min()), float(data.x.max())) == (0.0, 1.0)
    assert (data.domain.low, data.domain.high) == (0.0, 1.0)


def test_digits_are_those_of_scikit_learn() -> None:
    images, labels = digits.load_digits()
    expected = sklearn.datasets.load_digits()
    np.testing.assert_array_equal(images, expected.data)
    np.testing.assert_array_equal(labels, expected.target)


def test_the_split_of_digits_has_a_seed_of_its_own() -> None:
    first, again, other = Digits().load(), Digits().load(), Digits(split_seed=1).load()
    np.testing.assert_array_equal(first.test_x, again.test_x)
    assert (first.test_x != other.test_x).any()


def test_no_scaling_keeps_raw_values_and_domain() -> None:
    raw = table()
    data = loaded(raw)
    np.testing.assert_allclose(numbers(data.x), numbers(raw.x), rtol=1e-7)
    assert data.domain == raw.domain
    assert not data.scaling.fitted


def test_unit_range_maps_the_domain_not_the_data() -> None:
    raw = table()
    data = loaded(raw, "unit-range")
    np.testing.assert_allclose(numbers(data.x), (numbers(raw.x) + 4.0) / 10.0, rtol=1e-6)
    assert (data.domain, data.scaling.fitted) == (Domain(0.0, 1.0), False)


def test_unit_range_needs_a_bounded_domain() -> None:
    with pytest.raises(OptionError, match="scaling: unit-range needs a dataset with a bounded domain"):
        loaded(replace(table(), domain=Domain(low=-4.0)), "unit-range")


def test_minmax_is_fitted_on_training_rows_only_and_clamps_the_others() -> None:
    data = loaded(replace(table(shift=100.0), domain=Domain()), "minmax")
    np.testing.assert_allclose(data.x.min(axis=0), [0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(data.x.max(axis=0), [1, 1, 0], atol=1e-6)
    np.testing.assert_array_equal(data.test_x, np.ones((4, 3)))
    assert (data.scaling.fitted, data.domain) == (True, Domain(0.0, 1.0))


def test_standardise_gives_mean_zero_and_deviation_one_and_leaves_constants_alone() -> None:
    data = loaded(table(), "standardise")
    np.testing.assert_allclose(data.x.mean(axis=0), [0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(data.x.std(axis=0), [1, 1, 0], atol=1e-6)


@pytest.mark.parametrize("kind", ["none", "unit-range", "minmax", "standardise"])
def test_the_stored_scaling_repeats_what_was_done(kind: ScalingKind) -> None:
    raw = table()
    data = loaded(raw, kind)
    np.testing.assert_array_equal(data.scaling.apply(raw.test_x), data.test_x)


def test_subsets_are_the_first_rows() -> None:
    whole, cut = Given(scaling="none").load(), Given(scaling="none", train_samples=5, test_samples=2).load()
    np.testing.assert_array_equal(cut.x, whole.x[:5])
    np.testing.assert_array_equal(cut.test_y, whole.test_y[:2])
    assert cut.groups is not None
    assert len(cut.groups) == 5


def test_more_samples_than_there_are_is_an_error_with_both_numbers() -> None:
    with pytest.raises(OptionError, match="train_samples: found 13, but there are only 12 samples"):
        Given(train_samples=13).load()


def with_nan(data: Data) -> Data:
    x = data.x.astype(np.float64)
    x[3, 1] = np.nan
    return replace(data, x=x)


def with_label(data: Data) -> Data:
    labels: NDArray[np.int64] = data.test_y.copy()
    labels[2] = 2
    return replace(data, test_y=labels)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (with_nan, "dataset Given: training input 3, feature 1 is nan: remove or fill it"),
        (with_label, "dataset Given: label 2 of test sample 2 is not within 0..1"),
        (
            lambda data: replace(data, y=data.y[:-1]),
            "must be (samples, features) with one label each, found (12, 3)",
        ),
        (lambda data: replace(data, test_x=data.test_x[:0], test_y=data.test_y[:0]), "found (0, 3) and (0,)"),
        (lambda data: replace(data, y=data.y.tolist()), "must be (samples, features) with one label each"),
        (lambda data: replace(data, y=data.y + 0.5), "labels integers, found float64 and float64: convert them"),
        (lambda data: replace(data, x=data.x.astype(object)), "inputs must be numbers and their labels integers"),
        (lambda data: replace(data, test_x=data.test_x[:, 1:]), "test inputs have 2 features, others 3"),
        (lambda data: replace(data, test_x=data.test_x + 5), "test input 0, feature 0 is 8.8"),
        (
            lambda data: replace(data, domain=Domain(1.0, 1.0)),
            "cannot be in the domain [1, 1]: low must be less than high",
        ),
        (lambda data: replace(data, image_shape=(2, 2)), "3 features are not an image of shape (2, 2)"),
        (lambda data: replace(data, feature_names=("age",)), "3 features need as many names or none, not 1"),
        (lambda data: replace(data, groups=data.y - 1), "every training sample needs a group, an integer from 0 on"),
        (lambda data: replace(data, groups=data.y / 2), "every training sample needs a group, an integer from 0 on"),
    ],
)
def test_unusable_arrays_are_refused_with_the_place(spoil: Callable[[Data], Data], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        loaded(spoil(table()))


def test_a_feature_that_hardly_varies_stays_finite() -> None:
    raw = table()
    raw.x[:, 1] = np.arange(12) * 5e-324
    assert np.isfinite(numbers(loaded(raw, "minmax").x)).all()


def test_the_domain_bounds_every_input_norm() -> None:
    data = Digits().load()
    norms = np.linalg.norm(data.x, axis=1)
    assert norms.max() <= data.domain.norm_bound(64) == 8.0
    assert Domain().norm_bound(64) == np.inf
