"""A user's own arrays: what is read from them, which options go together, and unusual data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crfl_datasets.arrays import Arrays
from pydantic import ValidationError

from crfl_core import load_config, run
from crfl_core.extend import ConfigError, DataError, OptionError
from tests.datasets.own_files import X, Y, npz_file


def test_an_npz_file_is_split_at_random_but_always_alike(tmp_path: Path) -> None:
    path = npz_file(tmp_path / "mine.npz", x=X, y=Y)
    data = Arrays(path=path).read()
    assert (data.x.shape, data.test_x.shape) == ((16, 2), (4, 2))
    rows = np.concatenate([data.x, data.test_x])[:, 0] / 2
    assert sorted(rows.tolist()) == list(range(20))
    np.testing.assert_array_equal(np.concatenate([data.y, data.test_y]), Y[rows.astype(int)])
    np.testing.assert_array_equal(data.x, Arrays(path=path).read().x)
    assert (data.x != Arrays(path=path, split_seed=1).read().x).any()
    assert data.class_names == ("0", "1")


def test_an_npz_file_may_hold_test_arrays_and_groups_under_any_name(tmp_path: Path) -> None:
    arrays = {"pixels": X, "digit": Y, "test_pixels": X[:3] + 1, "test_digit": Y[:3], "owner": list("ab" * 10)}
    path = npz_file(tmp_path / "a.npz", **arrays)
    data = Arrays(path=path, inputs="pixels", label="digit", group="owner").read()
    np.testing.assert_array_equal(data.x, X)
    np.testing.assert_array_equal(data.test_x, X[:3] + 1)
    assert data.group_names == ("a", "b")
    assert data.groups is not None
    np.testing.assert_array_equal(data.groups, Y)


def test_npy_files_hold_inputs_and_labels_apart(tmp_path: Path) -> None:
    for name, array in (("x", X), ("y", Y), ("tx", X[:5]), ("ty", Y[:5])):
        np.save(tmp_path / f"{name}.npy", array)
    data = Arrays(
        path=tmp_path / "x.npy",
        labels_path=tmp_path / "y.npy",
        test_path=tmp_path / "tx.npy",
        test_labels_path=tmp_path / "ty.npy",
    ).load()
    np.testing.assert_array_equal(data.x, X.astype(np.float32))
    np.testing.assert_array_equal(data.test_y, Y[:5])


def test_bytes_of_three_dimensions_are_images_of_the_domain_0_to_255(tmp_path: Path) -> None:
    images = np.arange(10 * 12, dtype=np.uint8).reshape(10, 3, 4)
    data = Arrays(path=npz_file(tmp_path / "i.npz", x=images, y=np.arange(10) % 3), scaling="unit-range").load()
    assert (data.x.shape[1], data.image_shape) == (12, (3, 4))
    assert (data.domain.low, data.domain.high) == (0.0, 1.0)
    assert data.x.max() == pytest.approx(119 / 255)


def test_a_domain_and_an_image_shape_can_be_declared(tmp_path: Path) -> None:
    path = npz_file(tmp_path / "a.npz", x=X, y=Y)
    data = Arrays(path=path, domain=(0, 40), image_shape=(1, 2), scaling="unit-range", class_names=("no", "yes")).load()
    assert (data.image_shape, data.class_names) == ((1, 2), ("no", "yes"))
    assert data.x.max() <= 39 / 40


def test_the_path_of_a_config_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    npz_file(tmp_path / "mine.npz", x=X, y=Y)
    assert Arrays.model_validate({"path": "mine.npz"}).path == tmp_path / "mine.npz"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either `path` or `callable`"),
        ({"path": "a.npz", "callable": "m:f"}, "give either `path` or `callable`"),
        ({"path": "a.txt"}, "`path` must end in .npz, .npy, .csv, .csv.gz, .parquet, found a.txt"),
        ({"path": "a.npy"}, "`labels_path` goes with a .npy file in `path`"),
        ({"path": "a.csv", "test_labels_path": "b.npy"}, "`test_labels_path` goes with a .npy file in `test_path`"),
        ({"path": "a.csv", "domain": [1, 1]}, "domain\n  Value error, must be [smallest, largest], found [1.0, 1.0]"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        Arrays.model_validate(options)


def test_a_config_error_says_where_it_was_written() -> None:
    with pytest.raises(ConfigError, match=r"dataset: give either `path` or `callable`"):
        load_config({"dataset": {"type": "arrays"}})


def test_a_missing_file_and_a_wrong_shape_are_errors(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"path: there is no file .*no.npz"):
        Arrays(path=tmp_path / "no.npz").read()
    with pytest.raises(OptionError, match=r"test_path: there is no file .*gone.csv"):
        Arrays(path=npz_file(tmp_path / "a.npz", x=X, y=Y), test_path=tmp_path / "gone.csv").read()
    with pytest.raises(DataError, match=re.escape("2 features are not an image of shape [3, 3]")):
        Arrays(path=npz_file(tmp_path / "a.npz", x=X, y=Y), image_shape=(3, 3)).read()
    with pytest.raises(OptionError, match="inputs: must be the name of one array"):
        Arrays(path=tmp_path / "a.npz", inputs=("x", "y")).read()


@pytest.mark.parametrize("scaling", ["none", "minmax", "standardise"])
@pytest.mark.parametrize(
    "arrays",
    [
        {"x": np.ones((20, 3)), "y": Y},
        {"x": X[:2] / 40, "y": Y[:2], "test_x": X[:1] / 40, "test_y": Y[:1]},
    ],
    ids=["constant features", "a sample for each class"],
)
def test_data_without_anything_to_learn_give_a_result(arrays: dict[str, Any], scaling: str, tmp_path: Path) -> None:
    path = npz_file(tmp_path / "few.npz", **arrays)
    config = {
        "rounds": 2,
        "dataset": {"type": "arrays", "path": str(path), "scaling": scaling, "domain": [0, 1]},
        "partition": {"type": "iid", "clients": 2},
        "votes": {"models": 10},
        "certificates": ["paper", "pathwise-linear"],
        "storage": {"figures": []},
    }
    assert 0 <= run(config, out=tmp_path / "run").metrics.accuracy <= 1


def test_declared_ranges_of_columns_become_the_unit_box_and_are_not_fitted(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b,label\n0,5,0\n10,15,1\n4,25,0\n6,5,1\n")
    ranges = {"b": (5.0, 15.0), "a": (0.0, 10.0)}
    data = Arrays(path=tmp_path / "table.csv", scaling="unit-range", ranges=ranges, test_fraction=0.25).load()
    assert not data.scaling.fitted
    rows = {tuple(round(value, 3) for value in row) for row in np.concatenate([data.x, data.test_x]).tolist()}
    assert rows == {(0.0, 0.0), (1.0, 1.0), (0.4, 1.0), (0.6, 0.0)}  # 25 is beyond the range, and is clamped


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"a": (0.0, 1.0)}, "ranges: has none for the column 'b'"),
        ({"a": (0.0, 1.0), "b": (0.0, 1.0), "c": (0.0, 1.0)}, "ranges: there is no column of numbers 'c', found a, b"),
    ],
)
def test_ranges_that_do_not_fit_the_columns_are_refused(tmp_path: Path, ranges: Any, message: str) -> None:
    (tmp_path / "table.csv").write_text("a,b,label\n0,5,0\n10,15,1\n1,5,0\n")
    with pytest.raises(OptionError, match=message):
        Arrays(path=tmp_path / "table.csv", ranges=ranges).load()


def test_ranges_belong_to_tables(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((4, 1)), y=np.arange(4) % 2)
    with pytest.raises(OptionError, match="ranges: belongs to the columns of a table"):
        Arrays(path=tmp_path / "own.npz", ranges={"a": (0.0, 1.0)}).load()


WARD = "age,ward,label,unit\n20,north,0,a\n30,south,1,b\n40,,0,a\n50,east,1,b\n"


def ward_options(path: Path, **options: Any) -> dict[str, Any]:
    path.write_text(WARD)
    ranges = {"age": (20.0, 70.0)}
    texts = {"ward": ("north", "south")}
    return {"path": path, "scaling": "unit-range", "group": "unit", "ranges": ranges, "categories": texts} | options


def test_each_listed_text_of_a_column_becomes_an_input_and_others_are_zero_in_all(tmp_path: Path) -> None:
    data = Arrays(**ward_options(tmp_path / "table.csv")).load()
    assert data.feature_names == ("age", "ward=north", "ward=south")
    assert not data.scaling.fitted
    rows = {tuple(round(value, 3) for value in row) for row in np.concatenate([data.x, data.test_x]).tolist()}
    assert rows == {(0.0, 1.0, 0.0), (0.2, 0.0, 1.0), (0.4, 0.0, 0.0), (0.6, 0.0, 0.0)}


def test_a_run_on_texts_predicts_new_rows_and_declares_that_its_texts_are_public(tmp_path: Path) -> None:
    table = {key: str(value) if key == "path" else value for key, value in ward_options(tmp_path / "table.csv").items()}
    config = {
        "rounds": 2,
        "dataset": {"type": "arrays", **table},
        "partition": "natural",
        "groups": {"by": "natural"},
        "certificates": ["group-vote"],
        "server": {"noise_std": 0.0},
        "storage": {"figures": []},
    }
    result = run(config, out=tmp_path / "run")
    (check,) = [check for check in result.audits[0].checks if check.name == "preprocessing is public"]
    assert check.status == "declared"
    (tmp_path / "new.csv").write_text("ward,age\nsouth,33\nwest,70\n")
    inputs = Arrays(**ward_options(tmp_path / "table.csv")).read_inputs(
        tmp_path / "new.csv", result.ledger.facts.feature_names
    )
    assert inputs.tolist() == [[33.0, 0.0, 1.0], [70.0, 0.0, 0.0]]


def test_the_columns_of_text_are_found(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(WARD)
    assert Arrays(path=path, group="unit").text_columns() == {"ward": ("east", "north", "south")}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"categories": {"word": ("a",)}}, "categories: there is no input column 'word', found age, ward"),
        ({"categories": {"ward": ("a", "a")}}, "must differ, but there are 2 called 'a'"),
        ({"categories": {"ward": ()}}, "at least 1"),
        ({"scaling": "none"}, '`categories` needs `scaling = "unit-range"`'),
        ({"ranges": None}, "ranges: has none for the column 'age'"),
        ({"ranges": {"age": (0, 1), "ward": (0, 1)}}, "ranges: there is no column of numbers 'ward', found age"),
        (
            {"categories": None},
            "row 2, column 'ward': found 'north' .* or list the texts of the column in `categories`",
        ),
    ],
)
def test_categories_that_do_not_fit_the_table_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((OptionError, DataError, ValidationError), match=message):
        Arrays(**ward_options(tmp_path / "table.csv", **options)).load()


def test_categories_belong_to_tables_and_clash_with_no_column(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((4, 1)), y=np.arange(4) % 2)
    with pytest.raises(OptionError, match="categories: belongs to the columns of a table"):
        Arrays(path=tmp_path / "own.npz", scaling="minmax", categories={"a": ("b",)}).load()
    (tmp_path / "table.csv").write_text("a,a=b,label\nb,1,0\nc,2,1\n")
    with pytest.raises(OptionError, match="categories: there is a column 'a=b', too"):
        Arrays(path=tmp_path / "table.csv", scaling="minmax", categories={"a": ("b",)}).load()
