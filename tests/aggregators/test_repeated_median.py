"""The repeated median of slopes is found by counting; sorting all slopes, as it is defined, gives the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from crfl_aggregators import repeated_median
from crfl_aggregators.repeated_median import SORT_ALL_UP_TO, MedianSearch, count_slopes_below, median_slopes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

Numbers = NDArray[np.floating]
Draw = Callable[[np.random.Generator, tuple[int, int]], Numbers]

DRAWN: dict[str, Draw] = {
    "normal": lambda generator, shape: generator.standard_normal(shape),
    "heavy tails": lambda generator, shape: generator.standard_cauchy(shape),
    "two camps": lambda generator, shape: generator.standard_normal(shape) + 50.0 * (generator.random(shape) < 0.3),
    "tiny": lambda generator, shape: 1e-30 * generator.standard_normal(shape),
    "far from zero": lambda generator, shape: 1000.0 + generator.standard_normal(shape),
    "all zero": lambda _, shape: np.zeros(shape),
    "half zero": lambda generator, shape: generator.standard_normal(shape) * (generator.random(shape) < 0.5),
    "few values": lambda generator, shape: generator.integers(0, 4, shape).astype(float),
    "a line": lambda _, shape: np.tile(0.25 * np.arange(shape[1]), (shape[0], 1)),
    "one huge": lambda generator, shape: np.where(np.arange(shape[1]) == 3, 1e30, generator.standard_normal(shape)),
}


def by_definition(across: Numbers) -> Numbers:
    """The median over i of the medians over j of all slopes, every one of them sorted."""
    rows, count = across.shape
    ranks, slopes = np.arange(count, dtype=across.dtype), np.empty((rows, count), across.dtype)
    for place in range(count):
        among = (across - across[:, place : place + 1]) / np.where(ranks == place, 1, ranks - place).astype(
            across.dtype
        )
        slopes[:, place] = np.median(np.delete(among, place, axis=1), axis=1)
    return np.asarray(np.median(slopes, axis=1))


def drawn(name: str, count: int, dtype: type[np.floating], rows: int = 9) -> Numbers:
    values = DRAWN[name](np.random.default_rng(count), (rows, count)).astype(dtype)
    return np.sort(values, axis=1)


def rounding(across: Numbers, expected: Numbers) -> Numbers:
    """A few units in the last place of the slopes, and of what subtraction leaves of values that lie far away."""
    eps = float(np.finfo(across.dtype).eps)
    typical = np.median(np.abs(across), axis=1) / across.shape[1]
    return np.asarray(8.0 * eps * (np.abs(expected) + typical), np.float64)


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("count", [2, 3, SORT_ALL_UP_TO, SORT_ALL_UP_TO + 1, SORT_ALL_UP_TO + 2, 300, 401])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_is_the_median_of_medians(name: str, count: int, dtype: type[np.floating]) -> None:
    across = drawn(name, count, dtype)
    expected, found = by_definition(across), median_slopes(across.copy())
    assert found.dtype == across.dtype
    assert (np.abs(found - expected) <= rounding(across, expected)).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(SORT_ALL_UP_TO + 1, 120), st.integers(0, 2**32), st.sampled_from([0, 1, 3]))
def test_ties_and_rounded_values_change_nothing(count: int, seed: int, digits: int) -> None:
    values = np.random.default_rng(seed).standard_normal((5, count)).round(digits)
    across = np.sort(values.astype(np.float32), axis=1)
    expected, found = by_definition(across), median_slopes(across)
    assert (np.abs(found - expected) <= rounding(across, expected)).all()


def test_the_input_is_left_alone() -> None:
    across = drawn("normal", 200, np.float32)
    before = across.copy()
    median_slopes(across)
    np.testing.assert_array_equal(across, before)


def test_counting_is_comparing_all_pairs() -> None:
    across, guess = drawn("normal", 300, np.float32, rows=4), np.array([0.0, 0.001, 0.01, 1.0])
    ranks = np.arange(300)
    with np.errstate(invalid="ignore", divide="ignore"):
        slopes = (across[:, None] - across[:, :, None]).astype(float) / (ranks[None] - ranks[:, None])
    expected = (slopes < guess[:, None, None]).sum(axis=2)  # NaN, with itself, is not below
    np.testing.assert_array_equal(count_slopes_below(across, guess), expected)


def test_few_medians_are_left_to_be_computed() -> None:
    across = drawn("normal", 1000, np.float32, rows=40)
    _, unknown = MedianSearch(across).narrow()
    assert unknown.sum(axis=1).mean() < 100


def test_coordinates_that_no_update_moves_need_no_medians_at_all() -> None:
    medians, unknown = MedianSearch(drawn("all zero", 500, np.float32)).narrow()
    assert not unknown.any()
    assert (median_slopes(np.zeros((2, 500), np.float32)) == 0).all()
    assert np.isfinite(medians).any()


def test_more_values_than_bytes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_median, "SECTION_LENGTH", 7)
    across = drawn("heavy tails", 80, np.float64)
    np.testing.assert_allclose(median_slopes(across), by_definition(across), rtol=1e-12)
