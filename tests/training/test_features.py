"""Features behind slow maps: computed once, kept in the user's cache, never believed unseen."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import crfl_core
from crfl_core.extend import BoundMap, FeatureMap
from crfl_core.files import feature_cache as sealed
from crfl_core.plugin_api.feature_map import FeatureMaps
from crfl_core.records.array_bytes import array_blocks
from crfl_core.training.features import load_or_compute_features, map_inputs
from tests.oracle import federation_of, tiny

calls: list[int] = []


class Power(BoundMap):
    lipschitz = None

    def __init__(self, inputs: int, exponent: float) -> None:
        self.outputs, self._exponent = inputs, exponent

    def __call__(self, x: Tensor) -> Tensor:
        calls.append(len(x))
        return x.abs() ** self._exponent

    def norm_bound(self, inputs: float) -> float:
        return math.inf


class SlowPower(FeatureMap):
    """Counts how many rows it was asked for."""

    slow: ClassVar[bool] = True
    exponent: float = 2.0

    def bind(self, inputs: int) -> BoundMap:
        return Power(inputs, self.exponent)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test."""
    calls.clear()
    monkeypatch.setenv("CRFL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def inputs(seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((300, 6), dtype=np.float32))


def chain(**options: Any) -> FeatureMaps:
    return FeatureMaps([SlowPower(**options)], 6)


def computed(x: Tensor, **options: Any) -> tuple[Tensor, int]:
    """The features and how many rows were computed for them."""
    calls.clear()
    return load_or_compute_features(chain(**options), x), sum(calls)


def test_features_are_computed_once_and_then_mapped() -> None:
    x = inputs()
    first, rows = computed(x)
    again, tried = computed(x)
    assert torch.equal(first, x**2)
    assert torch.equal(again, first)
    assert (rows, tried) == (300 + 8, 8)  # some rows are always tried


@pytest.mark.parametrize("other", [{"exponent": 3.0}, {"x": inputs(1)}, {"x": inputs().double()}])
def test_other_inputs_or_options_are_another_file(other: dict[str, Any], folder: Path) -> None:
    computed(inputs())
    options = {name: value for name, value in other.items() if name != "x"}
    x = other.get("x", inputs())
    features, _ = computed(x, **options)
    torch.testing.assert_close(features, x ** options.get("exponent", 2.0))
    assert features.dtype == x.dtype
    assert len(list(folder.iterdir())) == 2


class Weighted(FeatureMap):
    """Multiplies by the number in a file, which has its digest."""

    slow: ClassVar[bool] = True
    file: Path

    def bind(self, inputs: int) -> BoundMap:
        content = self.file.read_text()
        bound = Power(inputs, float(content))
        bound.digest = hashlib.sha256(content.encode()).hexdigest()
        return bound


def test_other_weights_at_the_same_place_are_another_file(tmp_path: Path, folder: Path) -> None:
    x = inputs()
    for number, exponent in enumerate(("2.0", "2.000001"), start=1):
        (tmp_path / "weights").write_text(exponent)
        features = load_or_compute_features(FeatureMaps([Weighted(file=tmp_path / "weights")], 6), x)
        assert torch.equal(features, x ** float(exponent))
        assert len(list(folder.iterdir())) == number


def test_a_row_that_is_only_a_little_wrong_is_not_believed(folder: Path) -> None:
    """One small row among long ones: a tolerance for all rows together would let it pass."""
    x = inputs()
    x[0] *= 1e-3
    computed(x)
    (path,) = folder.iterdir()
    wrong = np.load(path)
    wrong[0] *= 1.5
    sealed.write_cache_file(path, array_blocks(wrong.shape, [wrong]))
    features, _ = computed(x)
    assert torch.equal(features, x**2)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def resealed(path: Path) -> None:
    """Whole, with a right checksum, and of another map: as if the code had changed."""
    wrong = np.load(path) * 1.5
    sealed.write_cache_file(path, array_blocks(wrong.shape, [wrong]))


@pytest.mark.parametrize("damage", [flipped, cut, emptied, resealed])
def test_a_damaged_or_outdated_file_is_computed_anew(damage: Callable[[Path], None], folder: Path) -> None:
    x = inputs()
    computed(x)
    (file,) = folder.iterdir()
    damage(file)
    features, rows = computed(x)
    assert torch.equal(features, x**2)
    assert rows >= 300
    assert computed(x)[1] == 8


def test_a_cache_that_cannot_be_written_costs_time_only(folder: Path) -> None:
    folder.parent.parent.mkdir(exist_ok=True)
    folder.parent.write_text("a file where a folder should be")
    features, rows = computed(inputs())
    assert torch.equal(features, inputs() ** 2)
    assert rows == 300


def test_writers_at_the_same_time_leave_one_whole_file(folder: Path) -> None:
    x = inputs()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: load_or_compute_features(chain(), x), range(16)))
    assert all(torch.equal(one, x**2) for one in found)
    (file,) = folder.iterdir()
    assert sealed.is_intact(file)


def test_writing_to_features_changes_no_file() -> None:
    features, _ = computed(inputs())
    features.mul_(3.0)
    assert torch.equal(computed(inputs())[0], inputs() ** 2)


def test_what_was_not_used_for_longest_makes_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "MOST_CACHE_BYTES", 20_000)  # two files of 7,360 bytes
    for seed in range(5):
        computed(inputs(seed))
    assert len(list(folder.iterdir())) == 2
    assert computed(inputs(4))[1] == 8


def test_quick_maps_leave_nothing_behind(folder: Path) -> None:
    federation_of(tiny(model={"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}}))
    assert not folder.exists()


def test_wide_maps_are_computed_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crfl_core.training.features.FEATURE_NUMBERS_AT_ONCE", 600)
    shown: list[tuple[int, int]] = []
    result = map_inputs(chain(), inputs(), lambda done, total: shown.append((done, total)))
    assert torch.equal(result, inputs() ** 2)
    assert shown == [(100, 300), (200, 300), (300, 300)]


def test_a_run_from_the_cache_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    model = {"type": "softmax", "features": [{"type": "scattering", "angles": 2}, {"type": "unit-sphere"}]}
    first, second = (crfl_core.run(tiny(model=model), out=tmp_path / name) for name in ("first", "second"))
    assert torch.equal(first.parameters, second.parameters)
    assert first.ledger.facts == second.ledger.facts
