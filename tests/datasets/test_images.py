"""MNIST and its relatives, on small files of the same format."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from crfl_datasets.emnist import CHARACTERS, Emnist, Split, split_file_names
from crfl_datasets.idx import MNIST_FILE_NAMES, ImageDataset
from crfl_datasets.mnist import FashionMnist, Mnist

from crfl_core.extend import DataError, Domain
from tests.datasets.idx_files import idx, write_four


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_four(tmp_path / "files")
    return tmp_path / "files"


@pytest.mark.parametrize(("dataset", "first"), [(Mnist, "0"), (FashionMnist, "T-shirt")])
def test_four_files_make_a_dataset(dataset: type[ImageDataset], first: str, folder: Path) -> None:
    data = dataset(path=folder).load()
    assert (data.x.shape, data.test_x.shape) == ((50, 24), (20, 24))
    assert data.x.dtype == np.float32
    assert (data.domain, data.image_shape) == (Domain(0.0, 1.0), (6, 4))
    assert (data.class_names[0], len(data.class_names)) == (first, 10)
    assert data.feature_names[5] == "pixel_1_1"
    np.testing.assert_array_equal(data.test_y, np.arange(20) % 10)


def test_pixels_are_divided_by_255(folder: Path) -> None:
    raw = Mnist(path=folder, scaling="none").load().x
    scaled = Mnist(path=folder).load().x
    np.testing.assert_allclose(scaled.astype(np.float64), raw.astype(np.float64) / 255, rtol=1e-7)


@pytest.mark.parametrize("split", get_args(Split))
def test_every_split_of_emnist_has_its_classes_and_upright_images(split: Split, tmp_path: Path) -> None:
    count, first = len(CHARACTERS[split]), int(split == "letters")
    write_four(tmp_path, train=70, classes=count, first=first, names=split_file_names(split))
    data = Emnist(split=split, path=tmp_path, scaling="none").load()
    assert data.class_names == tuple(CHARACTERS[split])
    np.testing.assert_array_equal(data.y, np.arange(70) % count)
    content = gzip.decompress((tmp_path / split_file_names(split).train_images).read_bytes())[16:]
    stored = np.frombuffer(content, np.uint8).reshape(70, 6, 4)
    assert data.image_shape == (4, 6)
    np.testing.assert_array_equal(data.x.reshape(70, 4, 6), stored.swapaxes(1, 2))


def test_the_classes_of_emnist_are_those_of_its_mapping() -> None:
    assert {split: len(characters) for split, characters in CHARACTERS.items()} == {
        "byclass": 62,
        "bymerge": 47,
        "balanced": 47,
        "letters": 26,
        "digits": 10,
        "mnist": 10,
    }
    assert CHARACTERS["bymerge"][36:] == "abdefghnqrt"  # the lower-case letters that differ from the upper-case ones
    assert Emnist().split == "bymerge"


@pytest.mark.parametrize("dataset", [Mnist, FashionMnist, Emnist])
def test_every_file_has_a_checksum_a_size_and_a_place_to_get_it_from(dataset: type[ImageDataset]) -> None:
    source = dataset.source()
    assert len(source.files) == (24 if dataset is Emnist else 4)
    for file in source.files:
        assert file.sha256 is not None
        assert len(bytes.fromhex(file.sha256)) == 32
        assert file.size
        assert file.urls or source.archive
        assert all(url.endswith(file.name) for url in file.urls)


def test_images_without_labels_are_noticed(folder: Path) -> None:
    (folder / MNIST_FILE_NAMES.train_labels).write_bytes(gzip.compress(idx(np.zeros(49))))
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.gz: has 49 labels, but .* has 50 images: check it"):
        Mnist(path=folder).load()


def test_a_label_out_of_range_is_named_with_its_position(folder: Path) -> None:
    labels = np.zeros(20)
    labels[7] = 10
    (folder / MNIST_FILE_NAMES.test_labels).write_bytes(gzip.compress(idx(labels), mtime=0))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte.gz: label 10 at position 7 is not within 0..9: check"):
        Mnist(path=folder).load()


def test_letters_have_no_label_zero(tmp_path: Path) -> None:
    write_four(tmp_path, classes=26, first=0, names=split_file_names("letters"))
    with pytest.raises(DataError, match=r"label 0 at position 0 is not within 1..26"):
        Emnist(split="letters", path=tmp_path).load()


def test_test_images_of_another_size_are_noticed(folder: Path) -> None:
    (folder / MNIST_FILE_NAMES.test_images).write_bytes(gzip.compress(idx(np.zeros((20, 5, 5)))))
    with pytest.raises(DataError, match=r"t10k-images.*: images are 5 x 5, but those for training are 6 x 4"):
        Mnist(path=folder).load()
