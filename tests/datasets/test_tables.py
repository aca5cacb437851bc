"""A user's own tables, CSV and Parquet: what is read from them."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from crfl_datasets.arrays import Arrays

from crfl_core import run
from crfl_core.extend import DataError
from tests.datasets.own_files import parquet_file, text_file


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


def test_the_label_may_be_the_owner(tmp_path: Path) -> None:
    path = text_file(tmp_path / "t.csv", "a,label\n" + "1,no\n2,yes\n" * 5)
    data = Arrays(path=path, group="label").read()
    np.testing.assert_array_equal(data.groups, data.y)


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
