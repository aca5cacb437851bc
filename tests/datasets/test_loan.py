"""Lending Club loans: the preprocessing of the paper, its errors, and the real sample."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crfl_datasets.loan import STATES, STATUSES, Loan
from crfl_datasets.loan_columns import FEATURES, HIGHEST, TEXTS
from pydantic import ValidationError

from crfl_core import run
from crfl_core.extend import Data, DataError, OptionError

real = pytest.mark.skipif(
    not (Path(os.environ.get("CRFL_DATA_DIR") or "nowhere") / "loan").is_dir(),
    reason="CRFL_DATA_DIR names no folder with the real sample of Lending Club",
)

COLUMNS = ("id", *FEATURES[:40], "addr_state", "desc", *FEATURES[40:], "loan_status", "source")
"""Some columns that are not used stand among those that are, as in the published files."""

DEFAULTS = {
    **dict.fromkeys(FEATURES, "1"),
    **dict.fromkeys(TEXTS, "n"),
    "id": "",
    "desc": 'said "yes", then\nnothing',
    "addr_state": "CA",
    "loan_status": "Current",
    "source": "first",
}


def loans(count: int = 10, /, **first: str) -> list[dict[str, str]]:
    """Loans that differ in `dti` and `addr_state`; `first` changes the first one."""
    rows = [DEFAULTS | {"dti": str(row), "addr_state": STATES[row % len(STATES)]} for row in range(count)]
    return [rows[0] | first, *rows[1:]]


def table(rows: Sequence[dict[str, str]], columns: Sequence[str] = COLUMNS) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def saved(folder: Path, text: str, name: str = "loan.csv") -> Path:
    """A file of this text, packed if its name says so."""
    path = folder / name
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if name.endswith(".gz") else text.encode())
    return path


def feature(data: Data, name: str) -> list[float]:
    """A raw feature of all samples, training ones first."""
    return [float(value) for value in np.concatenate([data.x, data.test_x])[:, FEATURES.index(name)]]


def in_file_order(data: Data) -> Any:
    """Where each row of the file went: `dti` numbers them."""
    return np.argsort(feature(data, "dti"))


# The preprocessing


def test_there_are_90_features_9_statuses_and_51_states() -> None:
    assert (len(set(FEATURES)), len(set(STATUSES)), len(set(STATES))) == (90, 9, 51)
    assert set(TEXTS) <= set(FEATURES)
    assert STATUSES[7] == "Does not meet the credit policy. Status:Fully Paid"


def test_unused_columns_are_dropped_and_the_order_of_columns_does_not_matter(tmp_path: Path) -> None:
    first = Loan(path=saved(tmp_path, table(loans()), "a.csv")).read()
    again = Loan(path=saved(tmp_path, table(loans(), COLUMNS[::-1]), "b.csv")).read()
    assert (first.x.shape, first.test_x.shape, first.feature_names) == ((8, 90), (2, 90), FEATURES)
    np.testing.assert_array_equal(first.x, again.x)


def test_labels_are_statuses_and_groups_are_states(tmp_path: Path) -> None:
    rows = [
        DEFAULTS | {"dti": str(row), "loan_status": status, "addr_state": "NY"} for row, status in enumerate(STATUSES)
    ]
    data = Loan(path=saved(tmp_path, table(rows))).read()
    np.testing.assert_array_equal(np.concatenate([data.y, data.test_y])[in_file_order(data)], np.arange(9))
    assert data.groups is not None
    assert [data.group_names[group] for group in data.groups] == ["NY"] * len(data.y)
    assert data.class_names == STATUSES


def test_an_empty_cell_is_zero(tmp_path: Path) -> None:
    data = Loan(path=saved(tmp_path, table(loans(annual_inc="", revol_util="", purpose="")))).read()
    order = in_file_order(data)
    for name in ("annual_inc", "revol_util", "purpose"):
        assert np.array(feature(data, name))[order].tolist() == [0.0] + [1.0] * 9


@pytest.mark.parametrize(
    ("name", "cell", "value"),
    [("term", " 36 months", 36.0), ("term", "60", 60.0), ("int_rate", " 13.56%", 13.56), ("revol_util", "7", 7.0)],
)
def test_units_are_understood_where_some_files_write_them(tmp_path: Path, name: str, cell: str, value: float) -> None:
    data = Loan(path=saved(tmp_path, table(loans(**{name: cell})))).read()
    assert feature(data, name)[in_file_order(data)[0]] == pytest.approx(value)


def test_text_is_coded_by_its_place_among_the_sorted_texts_whatever_the_order_of_the_rows(tmp_path: Path) -> None:
    grades = list("CABEDCAB")
    rows = [DEFAULTS | {"dti": str(row), "grade": grade} for row, grade in enumerate(grades)]
    for number, order in enumerate((rows, rows[::-1])):
        data = Loan(path=saved(tmp_path, table(order), f"{number}.csv")).read()
        coded = np.array(feature(data, "grade"))[in_file_order(data)]
        assert coded.tolist() == [1 + "ABCDE".index(grade) for grade in grades]


def test_scaled_features_lie_within_0_and_1(tmp_path: Path) -> None:
    data = Loan(path=saved(tmp_path, table(loans(60, annual_inc="1e9", grade="Z")))).load()
    assert (data.domain.low, data.domain.high, data.scaling.fitted) == (0.0, 1.0, True)
    for x in (data.x, data.test_x):
        assert 0.0 <= x.min() <= x.max() <= 1.0


def test_declared_ranges_and_texts_are_the_same_whatever_one_client_writes(tmp_path: Path) -> None:
    """With `minmax` one row moves the features of all others; with `unit-range` it moves its own."""
    rows = loans(60)
    strange = [rows[0] | {"annual_inc": "1e9", "grade": "!", "purpose": "car"}, *rows[1:]]
    moved = {}
    for scaling in ("minmax", "unit-range"):
        honest, poisoned = (
            Loan(path=saved(tmp_path, table(some), f"{scaling}{number}.csv"), scaling=scaling).load()
            for number, some in enumerate((rows, strange))
        )
        whole = [np.concatenate([data.x, data.test_x]) for data in (honest, poisoned)]
        moved[scaling] = int((whole[0] != whole[1]).any(axis=1).sum())
        assert 0.0 <= whole[1].min() <= whole[1].max() <= 1.0
    assert moved == {"minmax": 60, "unit-range": 1}
    assert (poisoned.scaling.kind, poisoned.scaling.fitted) == ("declared", False)


def test_every_feature_has_a_declared_range() -> None:
    assert set(HIGHEST) == set(FEATURES)
    assert min(HIGHEST.values()) >= 1


def test_a_fifth_is_held_out_by_a_seed_of_its_own(tmp_path: Path) -> None:
    path = saved(tmp_path, table(loans(50)))
    first, again, other = Loan(path=path).read(), Loan(path=path).read(), Loan(path=path, split_seed=1).read()
    assert (len(first.x), len(first.test_x)) == (40, 10)
    assert feature(first, "dti") == feature(again, "dti") != feature(other, "dti")
    assert sorted(feature(first, "dti")) == list(range(50))


def test_summary_lines_without_state_and_status_are_left_out(tmp_path: Path) -> None:
    rows = [*loans(10), dict.fromkeys(COLUMNS, "") | {"id": "Total amount funded in policy code 1: 460296150"}]
    assert sorted(feature(Loan(path=saved(tmp_path, table(rows))).read(), "dti")) == list(range(10))


def test_statuses_can_be_skipped_and_states_and_sources_chosen(tmp_path: Path) -> None:
    path = saved(tmp_path, table(loans(10, loan_status="Issued", source="second")))
    assert sorted(feature(Loan(path=path, skip_statuses=("Issued",)).read(), "dti")) == list(range(1, 10))
    assert sorted(feature(Loan(path=path, sources=("first",)).read(), "dti")) == list(range(1, 10))
    assert sorted(feature(Loan(path=path, states=STATES[1:4]).read(), "dti")) == [1, 2, 3]
    with pytest.raises(DataError, match="there are no loans in it of these states and sources"):
        Loan(path=path, sources=("third",)).read()
    with pytest.raises(ValidationError, match="there is no state 'Texas': use the two letters"):
        Loan(states=("Texas",))


@pytest.mark.parametrize(
    "name", ["loan.csv", "loan.csv.gz", "accepted_2007_to_2018Q4.csv.gz", "lendingclub_real_sample.csv.gz"]
)
def test_the_file_is_found_under_the_names_that_people_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("CRFL_DATA_DIR", str(tmp_path))
    (tmp_path / "loan").mkdir()
    saved(tmp_path / "loan", table(loans()), name)
    assert len(Loan().read().x) == 8


def test_a_parquet_file_gives_the_same_data(tmp_path: Path) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    path = saved(tmp_path, table(loans()))
    options = pyarrow.csv.ConvertOptions(column_types={"int_rate": "string"})
    whole = pyarrow.csv.read_csv(
        path, pyarrow.csv.ReadOptions(), pyarrow.csv.ParseOptions(newlines_in_values=True), options
    )
    pyarrow.parquet.write_table(whole, tmp_path / "loan.parquet")
    np.testing.assert_array_equal(Loan(path=tmp_path / "loan.parquet").read().x, Loan(path=path).read().x)


# What is wrong with a file


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"dti": "high"}, "row 2, column 'dti': found 'high' where a number is needed: correct the cell or remove"),
        (
            {"dti": "NaN"},
            "row 2, column 'dti': holds nan where a finite number is needed: correct the cell or remove the row",
        ),
        ({"dti": "-inf"}, "row 2, column 'dti': holds -inf"),
        ({"dti": "1e300"}, "row 2, column 'dti': holds 1e+300"),
        ({"dti": "__import__('os').abort()"}, "row 2, column 'dti': found \"__import__('os').abort()\""),
        ({"int_rate": "high%"}, "row 2, column 'int_rate': found 'high%' where a number is needed"),
        ({"int_rate": "1e300%"}, "row 2, column 'int_rate': found '1e300%' where a number is needed"),
        ({"int_rate": "nan"}, "row 2, column 'int_rate': found 'nan' where a number is needed"),
        (
            {"loan_status": "Issued"},
            "row 2, column 'loan_status': found 'Issued', not one of Current, Fully Paid, Late",
        ),
        ({"loan_status": ""}, "row 2, column 'loan_status': found '', not one of Current"),
        ({"addr_state": "XX"}, "row 2, column 'addr_state': found 'XX', not one of AK, AL"),
    ],
)
def test_a_bad_cell_is_named_with_file_row_and_column(tmp_path: Path, cells: dict[str, str], message: str) -> None:
    path = saved(tmp_path, table(loans(**cells)))
    with pytest.raises(DataError, match=re.escape(f"{path}, {message}")):
        Loan(path=path).read()


@pytest.mark.parametrize("column", ["dti", "addr_state", "loan_status"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    path = saved(tmp_path, table(loans(), [name for name in COLUMNS if name != column]))
    with pytest.raises(DataError, match=f"loan.csv: there is no column '{column}', found id, .*the right file"):
        Loan(path=path).read()


def test_a_table_of_another_kind_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"loan.txt: tables are read from files that end in .csv, .csv.gz, .parquet"):
        Loan(path=saved(tmp_path, table(loans()), "loan.txt")).read()


def test_a_row_with_too_few_cells_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path, table(loans()) + "1,2,3\n")
    with pytest.raises(DataError, match="row 12: has 3 cells, but the header has 95"):
        Loan(path=path).read()


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.999])
def test_a_truncated_file_is_an_error_that_says_to_get_it_again(tmp_path: Path, kept: float) -> None:
    path = saved(tmp_path, table(loans(500)), "loan.csv.gz")
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with pytest.raises(DataError, match=re.escape(str(path)) + ".*get it again"):
        Loan(path=path).read()


def test_a_file_without_loans_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no loans in it"):
        Loan(path=saved(tmp_path, table([]).strip() + "\n")).read()


def test_a_file_that_is_not_there_says_where_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRFL_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("CRFL_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"loan.csv.gz was not found in .*data.*cache.*Kaggle dataset"):
        Loan().read()
    with pytest.raises(OptionError, match="path: there is no file or folder"):
        Loan(path=tmp_path / "nowhere").read()


# The real sample


@real
def test_the_real_sample_has_the_published_counts() -> None:
    data = Loan().load()
    assert (len(data.x), len(data.test_x), data.x.shape[1]) == (46253, 11563, 90)
    counts = dict(zip(data.class_names, np.bincount(np.concatenate([data.y, data.test_y])).tolist(), strict=True))
    assert counts == {
        "Fully Paid": 38570,
        "Current": 9401,
        "Charged Off": 6770,
        "Does not meet the credit policy. Status:Fully Paid": 1988,
        "Does not meet the credit policy. Status:Charged Off": 761,
        "Late (31-120 days)": 190,
        "In Grace Period": 92,
        "Late (16-30 days)": 37,
        "Default": 7,
    }
    assert data.groups is not None
    assert len(np.unique(data.groups)) == 51
    for x in (data.x, data.test_x):
        assert (float(x.min()), float(x.max())) == (0.0, 1.0)
    assert (np.ptp(data.x, axis=0) > 0).sum() == 90


@real
def test_one_source_of_the_real_sample_can_be_chosen() -> None:
    data = Loan(sources=("lc2007_2011",)).read()
    assert len(data.x) + len(data.test_x) == 42535


@real
def test_a_federation_of_states_learns_the_real_sample(tmp_path: Path) -> None:
    settings = {
        "rounds": 15,
        "dataset": {"type": "loan"},
        "partition": {"type": "natural"},
        "model": {"type": "softmax"},
        "attack": "none",
        "training": {"learning_rate": 0.5, "steps": 10, "batch_size": 100},
        "certificates": [],
    }
    result = run(settings, out=tmp_path / "run")
    assert (result.ledger.facts.clients, result.ledger.facts.inputs) == (51, 90)
    assert result.metrics.accuracy > 0.8  # 0.667 of the loans are fully paid
