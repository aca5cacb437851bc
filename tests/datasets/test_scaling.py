"""Scaling of data that are too large for a second copy in double precision."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import PrivateAttr

from crfl_core import load_config, predict, run
from crfl_core.extend import Data, DataError, Dataset, Domain
from crfl_core.plugin_api.dataset import ScalingKind, check_data, fit_scaling
from crfl_core.records.inputs import DOUBLE_PRECISION_NUMBERS_AT_ONCE, Scaling
from crfl_core.training.federation import build
from tests.conftest import SMALL

KINDS: list[ScalingKind] = ["none", "unit-range", "minmax", "standardise"]


def data_of(x: NDArray[np.generic]) -> Data:
    """Inputs of two classes with the same rows for training and testing."""
    labels = np.arange(len(x)) % 2
    return Data(x, labels, x, labels, Domain(0.0, 255.0), ("no", "yes"))


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=10)
@given(rows=st.integers(1, 3000), columns=st.sampled_from([1, 7, 100]), seed=st.integers(0, 9))
def test_working_in_blocks_changes_nothing(kind: ScalingKind, rows: int, columns: int, seed: int) -> None:
    raw = np.random.default_rng(seed).integers(0, 256, (rows, columns), dtype=np.uint8)
    exact = raw.astype(np.float64)
    shift, factor = {
        "none": (0.0, 1.0),
        "unit-range": (0.0, 1 / 255),
        "minmax": (exact.min(0), 1 / np.maximum(np.ptp(exact, axis=0), 1)),
        "standardise": (exact.mean(0), 1 / np.where(exact.std(0) > 0, exact.std(0), 1)),
    }[kind]
    scaling, _ = fit_scaling(kind, data_of(raw))
    np.testing.assert_allclose(scaling.apply(raw), (exact - shift) * factor, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_peak_of_memory_is_little_more_than_the_result(kind: ScalingKind, tmp_path: Path) -> None:
    shape = (40 * DOUBLE_PRECISION_NUMBERS_AT_ONCE // 100, 100)
    raw = np.lib.format.open_memmap(tmp_path / "raw.npy", "w+", np.uint8, shape)
    raw[::3] = 7
    data = data_of(np.asarray(raw))
    tracemalloc.start()
    check_data(data, "large")
    scaling, _ = fit_scaling(kind, data)
    result = scaling.apply(data.x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < result.nbytes + 4 * 8 * DOUBLE_PRECISION_NUMBERS_AT_ONCE


def test_single_precision_without_scaling_is_not_copied() -> None:
    raw = np.ones((3, 2), np.float32)
    assert np.shares_memory(Scaling().apply(raw), raw)
    raw.flags.writeable = False  # a mapped file, which PyTorch could not own
    assert not np.shares_memory(Scaling().apply(raw), raw)


def test_minmax_clamps_so_that_the_domain_holds_for_any_input() -> None:
    scaling, domain = fit_scaling("minmax", data_of(np.array([[1.0, 5.0], [3.0, 5.0]])))
    assert domain == Domain(0.0, 1.0)
    outside = scaling.apply(np.array([[-9.0, 4.0], [2.0, 5.5], [99.0, 7.0]]))
    np.testing.assert_array_equal(outside, [[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]])


def test_a_value_that_is_not_finite_is_named_beyond_the_first_block() -> None:
    x = np.zeros((DOUBLE_PRECISION_NUMBERS_AT_ONCE // 2 + 5, 3), np.float32)
    x[-2, 1] = np.inf
    with pytest.raises(DataError, match=f"training input {len(x) - 2}, feature 1 is inf: remove or fill it"):
        check_data(data_of(x), "large")


class Mapped(Dataset):
    """Read-only bytes, as from a mapped file."""

    _data: Data = PrivateAttr()

    def read(self) -> Data:
        return self._data


def test_a_subset_is_cut_before_it_is_scaled() -> None:
    dataset = Mapped(train_samples=10, test_samples=5)
    dataset._data = data_of(np.zeros((100_000, 50), np.uint8))
    tracemalloc.start()
    loaded = dataset.load()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (loaded.x.shape, loaded.test_x.shape) == ((10, 50), (5, 50))
    assert peak < 1_500_000  # whole, they would need 20 MB


def test_new_inputs_are_clamped_as_the_test_data_were(tmp_path: Path) -> None:
    result = run(overrides=[*SMALL, "dataset.scaling=minmax"], out=tmp_path / "run")
    raw = np.random.default_rng(0).uniform(-50, 50, (20, 64))
    shift, factor = (np.array(part) for part in (result.ledger.facts.scaling_shift, result.ledger.facts.scaling_factor))
    clamped = ((raw - shift) * factor).clip(0.0, 1.0)
    np.testing.assert_array_equal(predict(result, raw).classes, predict(result, clamped, scaled=True).classes)
    assert result.ledger.facts.domain == (0.0, 1.0)


@pytest.mark.parametrize(("dataset", "named"), [("digits", False), ("synthetic", True)])
def test_the_ledger_names_the_features_of_tables(dataset: str, named: bool) -> None:
    config = load_config({"dataset": dataset, "partition": {"type": "iid", "clients": 5}}).config
    loaded, facts = config.dataset.load(), build(config).facts
    assert facts.feature_names == (loaded.feature_names if named else ())
    assert facts.class_names == loaded.class_names
