"""Tables that cannot be used are named with row and column."""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

import pytest
from crfl_datasets import tables
from crfl_datasets.arrays import Arrays

from crfl_core.extend import DataError, OptionError
from tests.datasets.own_files import parquet_file, text_file


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
        ("a,b,label\n1,2,-1\n", "row 2: the label -1 is not a class"),
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
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'crfl\[tables\]'"):
        tables.column_names(text_file(tmp_path / "t.csv", "a,label\n1,0\n"))


def test_inputs_of_a_table_must_be_other_columns_than_the_label(tmp_path: Path) -> None:
    path = text_file(tmp_path / "t.csv", "a,label\n1,0\n")
    with pytest.raises(OptionError, match=r"inputs: name columns other than the label .* found \['a', 'label'\]"):
        Arrays(path=path, inputs=("a", "label")).read()
    with pytest.raises(OptionError, match=r"found \[\]"):
        Arrays(path=text_file(tmp_path / "u.csv", "label\n0\n")).read()
