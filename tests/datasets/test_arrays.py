"""A user's own arrays, tables and functions: what is read from them, and what is said when they cannot be used."""

from __future__ import annotations

import gzip
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crfl_datasets import tables
from crfl_datasets.arrays import Arrays
from pydantic import ValidationError

from crfl_core import load_config, run
from crfl_core.extend import ConfigError, DataError, OptionError

X = np.arange(40, dtype=np.float64).reshape(20, 2)
Y = np.arange(20) % 2


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def text_file(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def parquet_file(path: Path, **columns: Any) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


# What is read


def test_an_npz_file_is_split_at_random_but_always_alike(tmp_path: Path) -> None:
    path = saved(tmp_path / "mine.npz", x=X, y=Y)
    data = Arrays(path=path).read()
    assert (data.x.shape, data.test_x.shape) == ((16, 2), (4, 2))
    rows = np.concatenate([data.x, data.test_x])[:, 0] / 2
    assert sorted(rows.tolist()) == list(range(20))
    np.testing.assert_array_equal(np.concatenate([data.y, data.test_y]), Y[rows.astype(int)])
    np.testing.assert_array_equal(data.x, Arrays(path=path).read().x)
    assert (data.x != Arrays(path=path, split_seed=1).read().x).any()
    assert data.class_names == ("0", "1")


def test_an_npz_file_may_hold_test_arrays_and_groups_under_any_name(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", pixels=X, digit=Y, test_pixels=X[:3] + 1, test_digit=Y[:3], owner=list("ab" * 10))
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
    data = Arrays(path=saved(tmp_path / "i.npz", x=images, y=np.arange(10) % 3), scaling="unit-range").load()
    assert (data.x.shape[1], data.image_shape) == (12, (3, 4))
    assert (data.domain.low, data.domain.high) == (0.0, 1.0)
    assert data.x.max() == pytest.approx(119 / 255)


def test_a_domain_and_an_image_shape_can_be_declared(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x=X, y=Y)
    data = Arrays(path=path, domain=(0, 40), image_shape=(1, 2), scaling="unit-range", class_names=("no", "yes")).load()
    assert (data.image_shape, data.class_names) == ((1, 2), ("no", "yes"))
    assert data.x.max() <= 39 / 40


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_a_csv_file_has_a_row_for_each_sample(tmp_path: Path, ending: str) -> None:
    lines = ["width,kind,height,owner", *(f"{i},{'cat' if i % 3 else 'dog'},{-i}e1,{i % 2}" for i in range(9))]
    path = tmp_path / f"pets{ending}"
    text = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if ending == ".csv.gz" else text)
    data = Arrays(path=path, label="kind", group="owner", test_path=path).read()
    assert data.feature_names == ("width", "height")
    np.testing.assert_array_equal(data.x, [[i, -10 * i] for i in range(9)])
    assert data.class_names == ("cat", "dog")
    assert data.y.tolist() == [1, 0, 0] * 3
    assert data.groups is not None
    assert data.groups.tolist() == [0, 1] * 4 + [0]


def test_a_parquet_file_is_read_like_a_csv_file(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "t.parquet", a=[0.5, 1.5, 2.5, 3.5], b=[1, 2, 3, 4], label=[0, 1, 1, 0])
    data = Arrays(path=path, test_path=path).read()
    np.testing.assert_array_equal(data.x, [[0.5, 1], [1.5, 2], [2.5, 3], [3.5, 4]])
    assert data.y.tolist() == [0, 1, 1, 0]
    np.testing.assert_array_equal(Arrays(path=path, test_path=path, inputs=("b",)).read().x[:, 0], [1, 2, 3, 4])


def test_a_test_table_may_have_its_columns_in_another_order(tmp_path: Path) -> None:
    path = text_file(tmp_path / "train.csv", "a,b,label\n1,2,no\n3,4,yes\n")
    tests = text_file(tmp_path / "test.csv", "label,b,a,more\nyes,20,10,x\n")
    data = Arrays(path=path, test_path=tests).read()
    assert (data.test_x.tolist(), data.test_y.tolist()) == ([[10, 20]], [1])


def test_labels_are_text_in_both_files_or_numbers_in_both(tmp_path: Path) -> None:
    path = text_file(tmp_path / "train.csv", "a,label\n1,0\n3,1\n")
    tests = text_file(tmp_path / "test.csv", "a,label\n1,no\n")
    with pytest.raises(DataError, match=r"train.csv and .*test.csv: labels are text in one and numbers in the other"):
        Arrays(path=path, test_path=tests).read()
    assert Arrays(path=path, test_path=tests, class_names=("no", "yes")).read().test_y.tolist() == [0]


def test_a_table_longer_than_a_block_is_read_whole(tmp_path: Path) -> None:
    rows = 150_000
    path = text_file(tmp_path / "long.csv", "a,label\n" + "".join(f"{row},{row % 2}\n" for row in range(rows)))
    assert path.stat().st_size > 1 << 20
    np.testing.assert_array_equal(Arrays(path=path, test_path=path).read().x[:, 0], np.arange(rows))


def test_quoted_cells_may_contain_commas_and_line_breaks(tmp_path: Path) -> None:
    path = text_file(tmp_path / "q.csv", 'a,label\n1,"x, or\ny"\n2,z\n')
    assert Arrays(path=path, test_path=path).read().class_names == ("x, or\ny", "z")


def test_the_path_of_a_config_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "mine.npz", x=X, y=Y)
    assert Arrays.model_validate({"path": "mine.npz"}).path == tmp_path / "mine.npz"


# A function


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Writes the module `my_samples`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)

    def write(source: str) -> None:
        (tmp_path / "my_samples.py").write_text("import numpy as np\nx, y = np.eye(10), np.arange(10) % 2\n" + source)

    yield write
    import sys

    sys.modules.pop("my_samples", None)


@pytest.mark.parametrize(
    ("returned", "tests"),
    [
        ("(x, y)", 2),
        ("(x, y, x[:5], y[:5])", 5),
        ("{'x': x, 'y': y, 'test_x': x[:3], 'test_y': y[:3]}", 3),
        ("Data(x, y, x[:4], y[:4], Domain(0, 1), ('a', 'b'))", 4),
    ],
)
def test_a_function_returns_arrays_or_data(module: Callable[[str], None], returned: str, tests: int) -> None:
    module(f"from crfl_core.extend import Data, Domain\ndef load():\n    return {returned}\n")
    data = Arrays(callable="my_samples:load").load()
    assert (data.x.shape[1], len(data.test_x)) == (10, tests)


def test_a_function_may_stand_in_a_file_and_a_bare_name_is_none(
    module: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module("def load(): return x, y\n")
    monkeypatch.chdir(tmp_path)
    assert Arrays(callable="my_samples.py:load").load().x.shape[1] == 10
    with pytest.raises(ValidationError, match=r'must be "package\.module:name"'):
        Arrays(callable="my_samples")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no.such.module:load", "cannot be imported: ModuleNotFoundError: No module named 'no'"),
        ("my_samples:other", "'my_samples:other' cannot be imported: AttributeError"),
        ("my_samples.py:other", "my_samples.py:other' cannot be imported: FileNotFoundError"),
    ],
)
def test_a_function_that_is_not_there_is_named(module: Callable[[str], None], name: str, message: str) -> None:
    module("def load(): return x, y\n")
    with pytest.raises(OptionError, match=re.escape(message)):
        Arrays(callable=name).read()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise RuntimeError('disk full')", "my_samples:load() failed: RuntimeError: disk full"),
        ("return x", "must return a Data, (x, y), (x, y, test_x, test_y) or a mapping with these names, found ndarray"),
        ("return x, y, x", "found tuple of 3"),
        ("return {'x': x}", "my_samples:load: there is no array 'y', found x"),
        ("return [[1, 2], [3]], [0, 1]", "my_samples:load: inputs, labels and groups must be arrays"),
        ("return {1: x}", "my_samples:load: there is no array 'x', found 1"),
        ("raise SystemExit(3)", "my_samples:load() failed: SystemExit: 3"),
        ("return x, y[:9]", "labels must be (10,), one for each input, found (9,)"),
    ],
)
def test_what_a_function_does_wrong_is_said(module: Callable[[str], None], body: str, message: str) -> None:
    module(f"def load():\n    {body}\n")
    with pytest.raises(DataError, match=re.escape(message)):
        Arrays(callable="my_samples:load").read()


# Bad arrays


def changed(array: Any, place: Any, value: Any) -> Any:
    copy = array.copy()
    copy[place] = value
    return copy


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "a.npz: there is no array 'y', found x"),
        ({"x": X, "y": Y[:19]}, "a.npz: labels must be (20,), one for each input, found (19,)"),
        ({"x": X[:, 0], "y": Y}, "a.npz: inputs must be (samples, features) or (samples, height, width), found (20,)"),
        ({"x": X[:0], "y": Y[:0]}, "found (0, 2)"),
        (
            {"x": changed(X, (7, 1), np.nan), "y": Y},
            "a.npz, sample 7, feature 1: holds nan where a finite number is needed",
        ),
        ({"x": changed(X, (3, 0), 1e300), "y": Y}, "a.npz, sample 3, feature 0: holds 1e+300 where a finite number"),
        ({"x": X.astype(str), "y": Y}, "a.npz: inputs must be numbers, found an array of <U"),
        ({"x": X, "y": changed(Y, 3, -1)}, "a.npz, sample 3: the label -1 is no class"),
        ({"x": X, "y": changed(Y * 1.0, 2, np.nan)}, "a.npz, sample 2: the label nan is not a whole number"),
        ({"x": X, "y": Y + 20}, "a.npz: the largest label is 21, beyond the number of samples: number classes from 0"),
        ({"x": X, "y": Y + 0.5}, "a.npz, sample 0: the label 0.5 is not a whole number"),
        ({"x": X, "y": Y * 1j}, "a.npz: labels must be numbers or text, found an array of complex128"),
        ({"x": X, "y": Y, "test_x": X}, "a.npz: there is an array 'test_x', but none 'test_y': add it"),
        ({"x": np.zeros((20, 1, 1, 1, 1)), "y": Y}, "a.npz: inputs must be (samples, features) or (samples, height"),
        ({"x": X, "y": changed(Y * 1.0, 2, 1e300)}, "a.npz, sample 2: the label 1e+300 is not a whole number"),
        ({"x": X, "y": Y, "test_x": X[:, :1], "test_y": Y}, "a.npz (test): has 1 features, but"),
        ({"x": X, "y": Y, "test_x": changed(X, (2, 0), np.inf), "test_y": Y}, "(test), sample 2, feature 0: holds inf"),
    ],
)
def test_unusable_arrays_are_named_with_the_place(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        Arrays(path=saved(tmp_path / "a.npz", **arrays)).read()


def test_a_label_beyond_the_named_classes_is_an_error_that_names_them(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x=X, y=changed(Y, 4, 2))
    with pytest.raises(DataError, match=r"a.npz, sample 4: the label 2 is no class: there are 2, .*called no, yes"):
        Arrays(path=path, class_names=("no", "yes")).read()
    words = saved(tmp_path / "w.npz", x=X, y=np.array(["no", "maybe"])[Y])
    with pytest.raises(DataError, match=r"w.npz, sample 1: the label maybe is no class"):
        Arrays(path=words, class_names=("no", "yes")).read()


class Trap:
    """Unpickling this would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.path, "gotcha"))


def test_python_objects_in_numpy_files_are_never_loaded(tmp_path: Path) -> None:
    trap = np.array([Trap(tmp_path / "gotcha")] * 20, dtype=object)
    np.savez(tmp_path / "a.npz", x=trap, y=Y, allow_pickle=True)
    np.save(tmp_path / "x.npy", trap, allow_pickle=True)
    np.save(tmp_path / "y.npy", Y)
    (tmp_path / "raw.npy").write_bytes(pickle.dumps(Trap(tmp_path / "gotcha")))
    for options in (
        {"path": tmp_path / "a.npz"},
        {"path": tmp_path / "x.npy", "labels_path": tmp_path / "y.npy"},
        {"path": tmp_path / "raw.npy", "labels_path": tmp_path / "y.npy"},
    ):
        with pytest.raises(DataError, match=r"is not a \.np[yz] file of numbers or text .*np.save"):
            Arrays.model_validate(options).read()
    assert not (tmp_path / "gotcha").exists()


@pytest.mark.parametrize("keep", [0, 10, 100, 400])
def test_a_truncated_file_is_an_error_that_names_it(tmp_path: Path, keep: int) -> None:
    path = saved(tmp_path / "a.npz", x=X, y=Y)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=re.escape(str(path))):
        Arrays(path=path).read()


def test_an_npy_file_that_is_called_npz_is_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    path = (tmp_path / "x.npy").rename(tmp_path / "x.npz")
    with pytest.raises(DataError, match=r"x.npz: is not a .npz file"):
        Arrays(path=path).read()


def test_inputs_outside_of_the_declared_domain_are_an_error_with_the_place(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x=changed(X, (7, 1), 1e6), y=Y)
    with pytest.raises(DataError, match=r"a.npz, sample 7, feature 1: holds 1000000.0 where a number in the domain \["):
        Arrays(path=path, domain=(float(X.min()), float(X.max()))).read()


def test_an_owner_that_is_not_a_number_is_an_error(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x=X, y=Y, owner=changed(Y * 1.0, 5, np.nan))
    with pytest.raises(DataError, match=r"a.npz: groups must be finite, sample 5 has nan"):
        Arrays(path=path, group="owner").read()


def test_the_label_may_be_the_owner(tmp_path: Path) -> None:
    path = text_file(tmp_path / "t.csv", "a,label\n" + "1,no\n2,yes\n" * 5)
    data = Arrays(path=path, group="label").read()
    np.testing.assert_array_equal(data.groups, data.y)


# Bad tables


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\xe4,label\n1,0\n", "row 1: the names of the columns are not in UTF-8: save it in UTF-8"),
        ("a,label\n1,no\n2,\xe4\n", "row 3, column 'label': is not in UTF-8: save it in UTF-8"),
    ],
)
def test_text_in_another_encoding_than_utf_8_is_named_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=re.escape(f"{path}, {message}")):
        Arrays(path=path).read()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,label\n1,2,0\n1,abc,1\n", "row 3, column 'b': found 'abc' where a number is needed: correct the cell"),
        ("a,b,label\n1,2,0\n1,__import__('os'),1\n", "row 3, column 'b': found \"__import__('os')\" where"),
        ("a,b,label\n1,2,0\n3,,1\n", "row 3, column 'b': is empty where a finite number is needed"),
        (
            "a,b,label\n1,2,0\nNaN,2,1\n",
            "row 3, column 'a': holds nan where a finite number is needed: correct the cell or remove the row",
        ),
        ("a,b,label\n1,2,0\n1e999,2,1\n", "row 3, column 'a': holds inf"),
        ("a,b,label\n1,2,0\n1,2,\n", "row 3, column 'label': is empty: fill the cell or remove the row"),
        ("a,b,label\n1,2,0\n1,2,3,0\n", "row 3: has 4 cells, but the header has 3: put cells that contain commas in"),
        ("a,b,label\n1,2,0\n1,2\n", "row 3: has 2 cells, but the header has 3"),
        ("a,b,kind\n1,2,0\n", "there is no column 'label', found a, b, kind: is this the right file?"),
        ("a,label,label\n1,2,0\n", "there is 2 columns 'label'"),
        ("a,b,label\n", "has a header but no rows"),
        ("", "cannot be read (Empty CSV file)"),
        ("a,b,label\n1,2,-1\n", "row 2: the label -1 is no class"),
        ("a,b,label\n1,2,0\n1,2,NaN\n", "row 3, column 'label': is NaN: fill the cell or remove the row"),
        ("a,b,label\n1,2,0\n1,2,=1+1\n", "row 3, column 'label': found '=1+1' where others are numbers: correct it"),
        (f"a,b,label\n1,2,0\n1,2,{'9' * 5000}\n", f"row 3, column 'label': found '{'9' * 40}' where others are"),
    ],
)
def test_a_bad_table_is_named_with_row_and_column(tmp_path: Path, text: str, message: str) -> None:
    path = text_file(tmp_path / "t.csv", text)
    with pytest.raises(DataError, match=re.escape(str(path)) + ".*" + re.escape(message)):
        Arrays(path=path, test_path=path).read()


def test_the_row_of_a_bad_cell_is_right_beyond_the_first_block(tmp_path: Path) -> None:
    good = "".join(f"{row},{row % 2}\n" for row in range(120_000))
    for bad, message in (("oops,1\n", "found 'oops'"), ("nan,1\n", "holds nan")):
        path = text_file(tmp_path / "t.csv", "a,label\n" + good + bad)
        with pytest.raises(DataError, match=f"row 120002, column 'a': {message}"):
            Arrays(path=path).read()


@pytest.mark.parametrize("cut", [9, 2000])
def test_a_truncated_gzip_file_is_an_error(tmp_path: Path, cut: int) -> None:
    text = "a,label\n" + "".join(f"{row * 7919 % 10007},{row % 2}\n" for row in range(20_000))
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(text.encode(), mtime=0)[:-cut])
    with pytest.raises(DataError, match=re.escape(str(path))):
        Arrays(path=path).read()


def test_text_in_a_parquet_column_of_inputs_is_an_error(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "t.parquet", a=["1", "2"], label=[0, 1])
    with pytest.raises(DataError, match=r"t.parquet, column 'a': holds string, not numbers"):
        Arrays(path=path).read()


def test_a_missing_number_in_a_parquet_file_is_an_error_with_the_row(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "t.parquet", a=[1.0, None], label=[0, 1])
    with pytest.raises(DataError, match=r"t.parquet, row 2, column 'a': is empty"):
        Arrays(path=path).read()


def test_a_file_that_is_no_parquet_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t.parquet: cannot be read \(.*get it again"):
        Arrays(path=text_file(tmp_path / "t.parquet", "no table")).read()


def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'crfl\[tables\]'"):
        tables.column_names(text_file(tmp_path / "t.csv", "a,label\n1,0\n"))


# Options


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
        Arrays(path=saved(tmp_path / "a.npz", x=X, y=Y), test_path=tmp_path / "gone.csv").read()
    with pytest.raises(DataError, match=re.escape("2 features are no image of shape [3, 3]")):
        Arrays(path=saved(tmp_path / "a.npz", x=X, y=Y), image_shape=(3, 3)).read()
    with pytest.raises(OptionError, match="inputs: must be the name of one array"):
        Arrays(path=tmp_path / "a.npz", inputs=("x", "y")).read()


def test_inputs_of_a_table_must_be_other_columns_than_the_label(tmp_path: Path) -> None:
    path = text_file(tmp_path / "t.csv", "a,label\n1,0\n")
    with pytest.raises(OptionError, match=r"inputs: name columns other than the label .* found \['a', 'label'\]"):
        Arrays(path=path, inputs=("a", "label")).read()
    with pytest.raises(OptionError, match=r"found \[\]"):
        Arrays(path=text_file(tmp_path / "u.csv", "label\n0\n")).read()


def test_a_run_on_a_users_table_learns(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(2, size=300)
    lines = [f"{generator.normal(4 * label):.4f},{generator.normal():.4f},{('no', 'yes')[label]}" for label in labels]
    path = text_file(tmp_path / "mine.csv", "a,b,answer\n" + "\n".join(lines))
    settings = {
        "rounds": 10,
        "dataset": {"type": "arrays", "path": str(path), "label": "answer", "scaling": "minmax"},
        "partition": {"type": "iid", "clients": 5},
        "attack": "none",
        "training": {"learning_rate": 2.0, "steps": 5, "batch_size": 20},
        "certificates": [],
    }
    assert run(settings, out=tmp_path / "run").metrics.accuracy > 0.9


# Data that nobody thinks of


def test_labels_with_holes_are_an_error_unless_all_classes_are_named(tmp_path: Path) -> None:
    """Codes such as 0, 5 and 10 would become eleven classes."""
    path = saved(tmp_path / "codes.npz", x=X, y=np.array([0, 5, 10])[np.arange(20) % 3])
    with pytest.raises(DataError, match="no sample has the label 1, though the largest is 10: number the 3 classes"):
        Arrays(path=path).read()
    names = tuple(map(str, range(11)))
    assert Arrays(path=path, class_names=names).read().class_names == names


def test_a_single_class_is_an_error(tmp_path: Path) -> None:
    path = saved(tmp_path / "one.npz", x=X, y=np.zeros(20, np.int64))
    with pytest.raises(DataError, match="needs two classes or more, found 0: add samples of another, or name it"):
        Arrays(path=path).load()
    assert Arrays(path=path, class_names=("0", "1")).load().class_names == ("0", "1")


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
    data = {"type": "arrays", "path": str(saved(tmp_path / "few.npz", **arrays)), "scaling": scaling, "domain": [0, 1]}
    config = {
        "rounds": 2,
        "dataset": data,
        "partition": {"type": "iid", "clients": 2},
        "votes": {"models": 10},
        "certificates": ["paper", "pathwise-linear"],
        "storage": {"figures": []},
    }
    assert 0 <= run(config, out=tmp_path / "run").metrics.accuracy <= 1
