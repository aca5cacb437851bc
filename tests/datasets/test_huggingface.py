"""Sets of Hugging Face `datasets`, saved to disk: no network is used."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crfl_datasets.huggingface import HuggingFace
from numpy.typing import NDArray
from pydantic import ValidationError

from crfl_core import run
from crfl_core.extend import DataError, OptionError

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"  # before `datasets` is imported, which is late

Save = Callable[..., Path]

TABLE = {"width": [1.0, 2.0, 3.0, 4.0, 5.0], "count": [5, 4, 3, 2, 1], "note": list("abcde"), "label": [0, 1, 2, 1, 0]}


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Saves columns as a set without splits, or mappings of columns as its splits; features may be given."""
    import datasets

    def write(columns: dict[str, Any], features: dict[str, Any] | None = None, *, splits: bool = False) -> Path:
        made = {
            name: datasets.Dataset.from_dict(part, datasets.Features(features) if features else None)
            for name, part in (columns if splits else {"train": columns}).items()
        }
        (datasets.DatasetDict(made) if splits else made["train"]).save_to_disk(str(tmp_path / "set"))
        return tmp_path / "set"

    return write


def pictures(pixels: NDArray[np.uint8]) -> list[Any]:
    from PIL import Image

    return [Image.fromarray(image) for image in pixels]


def random_pixels(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)


def image_features(names: list[str]) -> dict[str, Any]:
    import datasets

    return {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}


def test_grey_images_become_rows_of_bytes(save: Save) -> None:
    pixels = random_pixels(10, 3, 4)
    columns = {"image": pictures(pixels), "label": [0, 1] * 5}
    tests = {"image": pictures(pixels[:4]), "label": [0, 1] * 2}
    path = save({"train": columns, "test": tests}, image_features(["cat", "dog"]), splits=True)
    data = HuggingFace(path=path).read()
    np.testing.assert_array_equal(data.x, pixels.reshape(10, 12))
    np.testing.assert_array_equal(data.test_x, pixels[:4].reshape(4, 12))
    assert (data.image_shape, data.class_names, data.y.tolist()) == ((3, 4), ("cat", "dog"), [0, 1] * 5)
    assert HuggingFace(path=path).load().x.max() <= 1.0


def test_colour_images_have_channels_first_and_can_be_made_grey(save: Save) -> None:
    pixels = random_pixels(6, 3, 4, 3)
    path = save({"image": pictures(pixels), "label": [0, 1] * 3}, image_features(["a", "b"]))
    data = HuggingFace(path=path, test_fraction=0.5).read()
    assert (data.x.shape, data.test_x.shape, data.image_shape) == ((3, 36), (3, 36), (3, 3, 4))
    rows = {bytes(image) for image in np.moveaxis(pixels, -1, 1).reshape(6, 36)}
    assert {bytes(image) for image in np.concatenate([data.x, data.test_x])} == rows
    assert HuggingFace(path=path, test_fraction=0.5, colour="grey").read().image_shape == (3, 4)


def test_a_table_gives_its_columns_of_numbers(save: Save) -> None:
    data = HuggingFace(path=save(TABLE), scaling="none", test_fraction=0.4, group="note").load()
    assert data.feature_names == ("width", "count")
    assert (data.x.shape, data.test_x.shape) == ((3, 2), (2, 2))
    np.testing.assert_array_equal(data.x.astype(float).sum(axis=1), [6, 6, 6])
    assert data.group_names == tuple("abcde")
    assert data.groups is not None
    np.testing.assert_array_equal(data.groups, data.x[:, 0].astype(int) - 1)


def test_columns_of_lists_and_labels_of_text_are_understood(save: Save) -> None:
    path = save({"vector": [[i, i + 1, i + 2] for i in range(6)], "kind": ["b", "a", "a"] * 2})
    data = HuggingFace(path=path, inputs="vector", label="kind", scaling="minmax").load()
    assert (data.x.shape[1], data.class_names) == (3, ("a", "b"))
    assert (data.domain.low, data.domain.high) == (0.0, 1.0)


def test_other_splits_can_be_chosen(save: Save) -> None:
    path = save({"fit": TABLE, "check": TABLE}, splits=True)
    data = HuggingFace(path=path, train_split="fit", test_split="check", inputs=("count",)).read()
    np.testing.assert_array_equal(data.x[:, 0], data.test_x[:, 0])
    with pytest.raises(OptionError, match=r"train_split: .* has no split 'train', only fit, check"):
        HuggingFace(path=path).read()
    with pytest.raises(OptionError, match=r"test_split: .* has no split 'other', only fit, check"):
        HuggingFace(path=path, train_split="fit", test_split="other").read()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "kind"}, "label: .* has no column 'kind', only width, count, note, label"),
        ({"group": "state"}, "group: .* has no column 'state'"),
        ({"inputs": "height"}, "inputs: name one column of images, or columns of numbers: found no column 'height'"),
    ],
)
def test_a_missing_column_is_named_with_those_that_exist(save: Save, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        HuggingFace(path=save(TABLE), **options).read()


def test_a_set_without_numbers_has_no_inputs(save: Save) -> None:
    with pytest.raises(OptionError, match="found nothing as inputs"):
        HuggingFace(path=save({"text": ["a", "b"], "label": [0, 1]})).read()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1.0, None, 2.0], "label": [0, 1, 0]}, "sample 1, feature 0: holds nan where a finite number is needed"),
        ({"a": [[1], [1, 2], [3]], "label": [0, 1, 0]}, "column 'a', rows from 0 on: there is something else than"),
        ({"a": [1, 2, 3], "label": [0, -1, 0]}, "sample 1: the label -1 is not a class"),
        ({"a": [1, 2, 3], "label": [0, None, 0]}, "labels must be numbers or text, found none at sample 1"),
    ],
)
def test_unusable_values_are_named_with_the_place(save: Save, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match="split 'train'.*" + re.escape(message)):
        HuggingFace(path=save(columns), inputs="a").read()


def test_the_test_split_gives_the_columns_of_the_training_split_in_their_order(save: Save) -> None:
    columns = {"a": [1.0, 2.0], "b": [10.0, 20.0], "label": [0, 1]}
    path = save({"train": columns, "test": {name: columns[name] for name in ("label", "b", "a")}}, splits=True)
    data = HuggingFace(path=path, scaling="none").read()
    np.testing.assert_array_equal(data.test_x, data.x)


def test_a_column_that_only_the_training_split_has_is_named(save: Save) -> None:
    train, test = {"a": [1.0, 2.0], "label": [0, 1]}, {"b": [1.0, 2.0], "label": [0, 1]}
    path = save({"train": train, "test": test}, splits=True)
    with pytest.raises(OptionError, match=r"inputs: .* found no column 'a' .* split 'test', which has b, label"):
        HuggingFace(path=path).read()


def test_an_image_that_cannot_be_decoded_is_named_with_its_rows(save: Save) -> None:
    broken = [{"bytes": b"\x89PNG and so on", "path": None}] * 2
    path = save({"image": broken, "label": [0, 1]}, image_features(["no", "yes"]))
    with pytest.raises(DataError, match=r"split 'train', one of 1000 rows from 0 on: cannot be decoded \(Unidentified"):
        HuggingFace(path=path).read()


def test_images_must_be_of_one_size_and_kind(save: Save) -> None:
    images = [*pictures(random_pixels(2, 3, 4)), *pictures(random_pixels(1, 5, 5))]
    with pytest.raises(DataError, match=r"row 2: the image is \[5, 5\], but the first one is \[3, 4\]"):
        HuggingFace(path=save({"image": images, "label": [0, 1, 0]}, image_features(["a", "b"]))).read()


def test_a_mode_that_is_neither_grey_nor_rgb_must_be_converted(save: Save) -> None:
    path = save({"image": pictures(random_pixels(4, 3, 4, 4)), "label": [0, 1] * 2}, image_features(["a", "b"]))
    with pytest.raises(DataError, match=r"row 0: the image is of mode RGBA: set colour to grey or rgb"):
        HuggingFace(path=path).read()
    assert HuggingFace(path=path, colour="rgb", test_fraction=0.5).read().image_shape == (3, 3, 4)


def test_a_row_without_an_image_is_named(save: Save) -> None:
    images = [*pictures(random_pixels(1, 3, 4)), None]
    with pytest.raises(DataError, match=r"row 1: has no image: remove the row"):
        HuggingFace(path=save({"image": images, "label": [0, 1]}, image_features(["a", "b"]))).read()


def test_a_folder_that_holds_no_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(str(tmp_path)) + ".*give a folder that `save_to_disk` wrote"):
        HuggingFace(path=tmp_path).read()


def test_a_set_that_cannot_be_reached_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRFL_CACHE_DIR", str(tmp_path))
    with pytest.raises(DataError, match=r"nobody/nothing: cannot be loaded .*check the name and the network, or give"):
        HuggingFace(name="nobody/nothing").read()


def test_without_the_package_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'crfl\[hf\]'"):
        HuggingFace(path=tmp_path).read()


@pytest.mark.parametrize("options", [{}, {"name": "a/b", "path": "set"}])
def test_a_name_or_a_path_is_needed(options: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="give either `name` or `path`"):
        HuggingFace.model_validate(options)


def test_a_run_learns_from_a_saved_set(save: Save, tmp_path: Path) -> None:
    labels = np.arange(200) % 2
    pixels = (random_pixels(200, 4, 4) // 2 + 127 * labels[:, None, None]).astype(np.uint8)
    path = save({"image": pictures(pixels), "label": labels.tolist()}, image_features(["dark", "bright"]))
    settings = {
        "rounds": 10,
        "dataset": {"type": "huggingface", "path": str(path)},
        "partition": {"type": "iid", "clients": 4},
        "model": {"type": "softmax"},
        "attack": "none",
        "training": {"learning_rate": 0.5, "steps": 5, "batch_size": 20},
        "certificates": [],
    }
    assert run(settings, out=tmp_path / "run").metrics.accuracy > 0.9
