"""CIFAR-10, on small files of the same format and, where they are there, on the real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from crfl_attacks.triggers import PixelTrigger
from crfl_datasets.cifar import CLASSES, FILES, IMAGE_SHAPE, Cifar10
from numpy.typing import NDArray

from crfl_core.errors import CrflError
from crfl_core.extend import DataError, DataFacts, Domain
from crfl_core.files.data_files import find_or_explain


def write_files(folder: Path, images: int = 4) -> list[NDArray[np.uint8]]:
    """Write six small files whose labels and pixels differ, and return their records."""
    folder.mkdir()
    generator = np.random.default_rng(1)
    written = []
    for name, _ in FILES:
        records = generator.integers(0, 256, (images, 3073), dtype=np.uint8)
        records[:, 0] %= len(CLASSES)
        records.tofile(folder / name)
        written.append(records)
    return written


def test_records_become_images_of_three_planes_in_the_order_of_the_files(tmp_path: Path) -> None:
    written = write_files(tmp_path / "cifar")
    data = Cifar10(path=tmp_path / "cifar", scaling="none").load()
    training = np.concatenate(written[:5])
    assert (data.x.shape, data.test_x.shape) == ((20, 3072), (4, 3072))
    np.testing.assert_array_equal(data.x, training[:, 1:])
    np.testing.assert_array_equal(data.y, training[:, 0])
    np.testing.assert_array_equal(data.test_x, written[5][:, 1:])
    assert (data.image_shape, data.class_names) == (IMAGE_SHAPE, CLASSES)
    assert data.feature_names[1024 + 33] == "green_1_1"


def test_values_are_scaled_to_the_unit_interval(tmp_path: Path) -> None:
    written = write_files(tmp_path / "cifar")
    data = Cifar10(path=tmp_path / "cifar").load()
    assert data.domain == Domain(0.0, 1.0)
    np.testing.assert_allclose(np.asarray(data.test_x, np.float64), written[5][:, 1:] / 255, rtol=1e-6)


def test_a_trigger_of_pixels_covers_all_three_planes() -> None:
    pattern = PixelTrigger(norm=6.0, size=2).pattern(DataFacts(3072, 10, Domain(0.0, 1.0), IMAGE_SHAPE))
    planes = pattern.view(IMAGE_SHAPE)
    assert int((planes > 0).sum()) == 12
    assert bool((planes[:, :2, :2] > 0).all())
    assert float(pattern.norm()) == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            lambda content: content[:-1],
            r"data_batch_2.bin: must have up to 10,000 records of 3073 bytes, found 12291 bytes",
        ),
        (lambda _: b"", r"data_batch_2.bin: must have up to 10,000 records of 3073 bytes, found 0 bytes"),
        (lambda content: b"\x0a" + content[1:], r"data_batch_2.bin: label 10 of image 0 is not within 0..9: check"),
    ],
    ids=["truncated", "empty", "wrong label"],
)
def test_a_damaged_file_is_named_with_what_is_wrong(change: object, complaint: str, tmp_path: Path) -> None:
    write_files(tmp_path / "cifar")
    path = tmp_path / "cifar" / "data_batch_2.bin"
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(DataError, match=complaint):
        Cifar10(path=tmp_path / "cifar").load()


def test_missing_files_are_explained_with_the_command_that_fetches_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CRFL_DATA_DIR", raising=False)
    monkeypatch.setenv("CRFL_CACHE_DIR", str(tmp_path))
    with pytest.raises(DataError, match="run `crfl data fetch cifar-10`"):
        Cifar10().load()


def test_the_real_files_are_balanced_and_have_the_published_means() -> None:
    try:
        find_or_explain(Cifar10.source(), FILES[0][0])
    except CrflError:
        pytest.skip("CIFAR-10 is not on this machine")
    data = Cifar10(scaling="none").load()
    assert (len(data.x), len(data.test_x)) == (50_000, 10_000)
    assert set(np.bincount(data.y)) == {5000}
    means = data.x.reshape(-1, 3, 1024).mean(axis=(0, 2), dtype=np.float64)
    np.testing.assert_allclose(means, [125.30691805, 122.95039414, 113.86538318], atol=1e-6)
