"""`predict` reads the format that the run was trained on, and answers with names of classes and radii."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

import crfl_core
from crfl_core import RunResult
from crfl_core.errors import DataError
from crfl_core.extend import Data, Dataset

Crfl = Callable[..., CompletedProcess[str]]
HEADER = "age,pressure,outcome,site"


def rows(count: int, seed: int) -> list[str]:
    """Patients whose outcome follows from their age."""
    rng = np.random.default_rng(seed)
    ages = rng.uniform(0, 1, count)
    return [f"{age:.3f},{rng.uniform():.3f},{'ill' if age > 0.5 else 'well'},{row % 5}" for row, age in enumerate(ages)]


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run on a CSV file with two columns, a label and a group."""
    folder = tmp_path_factory.mktemp("clinic")
    (folder / "clinic.csv").write_text("\n".join([HEADER, *rows(200, 0)]))
    config = {
        "rounds": 5,
        "dataset": {"type": "arrays", "path": str(folder / "clinic.csv"), "label": "outcome", "group": "site"},
        "partition": "natural",
        "training": {"learning_rate": 1.0, "steps": 10},
        "certificates": ["paper"],
        "votes": {"models": 50},
        "storage": {"figures": []},
    }
    return crfl_core.run(config, out=folder / "run")


def test_a_csv_file_is_read_by_the_names_of_its_columns(clinic: RunResult, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_text("site,pressure,age\n9,0.5,0.95\n9,0.5,0.05\n")
    found = crfl_core.predict(clinic, new)
    expected = crfl_core.predict(clinic, np.array([[0.95, 0.5], [0.05, 0.5]]))
    assert found.names == ["ill", "well"]
    assert found.class_names == ("ill", "well")
    assert found.classes.tolist() == expected.classes.tolist()
    np.testing.assert_array_equal(found.radii["paper.feature"], expected.radii["paper.feature"])
    assert crfl_core.predict(clinic, str(clinic.config.dataset.path)).classes.shape == (200,)  # type: ignore[attr-defined]


def test_the_command_prints_names_of_classes_and_radii(crfl: Crfl, clinic: RunResult, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("age,pressure\n0.95,0.5\n0.05,0.5\n")
    answer = crfl("predict", clinic.path, "new.csv")
    table = list(csv.DictReader(io.StringIO(answer.stdout)))
    assert [row["class"] for row in table] == ["ill", "well"]
    assert {row["paper.feature.prediction"] for row in table} <= {"ill", "well", ""}
    listed = json.loads(crfl("predict", clinic.path, "new.csv", "--json").stdout)
    assert [row["class"] for row in listed] == ["ill", "well"]
    assert [row["paper.feature.radius"] for row in listed] == [
        float(row["paper.feature.radius"] or 0) or None for row in table
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pressure\n1\n", r"new\.csv: there is no column 'age', found pressure"),
        ("age,pressure\n1,high\n", r"new\.csv, row 2, column 'pressure': found 'high' where a number is needed"),
        ("age,pressure\n", r"new\.csv: has a header but no rows"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_its_place(
    crfl: Crfl, clinic: RunResult, tmp_path: Path, text: str, message: str
) -> None:
    new = tmp_path / "new.csv"
    new.write_text(text)
    with pytest.raises(DataError, match=message):
        crfl_core.predict(clinic, new)
    told = crfl("predict", clinic.path, "new.csv")
    assert (told.returncode, told.stderr.count("new.csv")) == (2, 1)


def test_a_dataset_without_a_file_format_asks_for_arrays(tmp_path: Path) -> None:
    class Own(Dataset):
        """A dataset of this test."""

        def read(self) -> Data:
            raise NotImplementedError

    with pytest.raises(DataError, match=r"new inputs for this dataset are \.npz or \.npy files"):
        Own().read_inputs(tmp_path / "new.csv", ())
