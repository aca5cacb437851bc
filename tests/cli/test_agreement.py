"""The numbers of one run are the same wherever they are shown: summary, JSON, lists, tables, figures, reports."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
from crfl_experiments.sweeps import sweep
from crfl_reports.pages import write_report

from crfl_core import load
from tests.reports.conftest import data_of

Crfl = Callable[..., CompletedProcess[str]]
CONFIG = {
    "name": "agreed",
    "rounds": 4,
    "partition": {"type": "iid", "clients": 6},
    "groups": {"count": 6},
    "server": {"noise_std": 0.0},
    "certificates": ["group-vote"],
    "attack": {"type": "model-replacement", "clients": [3], "rounds": {"first": 1}, "scale": 10.0},
    "storage": {"figures": []},
}


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is also the only cell of a sweep. Shared: copy it before you change anything."""
    (one,) = sweep(CONFIG, out=tmp_path_factory.mktemp("agreed") / "sweep", workers=1).cells
    return one.path


@pytest.fixture(scope="module")
def metrics(cell: Path) -> dict[str, Any]:
    return dict(json.loads((cell / "metrics.json").read_text()))


@pytest.fixture(scope="module")
def curve(metrics: dict[str, Any]) -> dict[float, float]:
    """Certified accuracy on clean samples by the number of clients."""
    (found,) = (one for one in metrics["curves"] if one["test_set"] == "clean")
    return dict(zip(found["radii"], found["certified_accuracy"], strict=True))


def short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def test_in_the_summary_and_in_full(crfl: Crfl, cell: Path, metrics: dict[str, Any], curve: dict[float, float]) -> None:
    shown = crfl("show", cell).stdout
    assert re.search(rf"^accuracy +{re.escape(short(metrics['accuracy']))}$", shown, re.M)
    assert re.search(rf"^backdoor success +{re.escape(short(metrics['backdoor']['success_rate']))} ", shown, re.M)
    heads = next(line for line in shown.splitlines() if line.startswith("clients that attack")).split()[3:]
    row = next(line for line in shown.splitlines() if "group-vote" in line and "every round" in line)
    columns = dict(zip(heads, row.split()[-len(heads) :], strict=True))
    for radius, value in curve.items():
        assert columns.get(f"{radius:g}", short(value)) == short(value)
    full = crfl("show", cell, "--full").stdout
    assert re.search(rf"clean accuracy +{metrics['accuracy']:.3f}", full)
    for radius, value in curve.items():
        assert re.search(rf"^ +{radius:g} +{value:.3f} ", full, re.M)
    assert json.loads(crfl("show", cell, "--json").stdout) == metrics


def test_in_lists_and_comparisons(crfl: Crfl, cell: Path, metrics: dict[str, Any], curve: dict[float, float]) -> None:
    (listed,) = json.loads(crfl("ls", cell, "--json").stdout)
    assert listed["accuracy"] == metrics["accuracy"]
    assert listed["backdoor"] == metrics["backdoor"]["success_rate"]
    assert (listed["certified"], listed["certificate"]) == (curve[1.0], "group-vote")
    assert f"{metrics['accuracy']:.3f}" in crfl("ls", cell).stdout
    (point,) = json.loads(crfl("compare", cell, "--json").stdout)["points"]
    means = {name: one["mean"] for name, one in point["measures"].items()}
    assert means["accuracy"] == metrics["accuracy"]
    assert means["backdoor success"] == metrics["backdoor"]["success_rate"]
    for radius in (1.0, 2.0):
        assert means[f"group-vote: certified accuracy at clients {radius:g}"] == curve[radius]
    assert f"{curve[1.0]:.4f}" in crfl("compare", cell).stdout


def test_in_the_table_of_a_sweep(cell: Path, metrics: dict[str, Any], curve: dict[float, float]) -> None:
    with (cell.parents[1] / "sweep.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["test_set"] == "clean"]
    assert [float(row["value"]) for row in rows if row["measure"] == "accuracy"] == [metrics["accuracy"]]
    certified = {float(row["radius"]): float(row["value"]) for row in rows if row["measure"] == "certified_accuracy"}
    assert certified == curve


def test_in_figures(cell: Path, curve: dict[float, float]) -> None:
    axes = load(cell).plot("curves").axes[0]
    assert axes.get_ylabel().startswith("certified accuracy")
    assert np.asarray(axes.lines[0].get_ydata()).tolist() == list(curve.values())
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == list(curve)


def test_in_reports(cell: Path, metrics: dict[str, Any], curve: dict[float, float], tmp_path: Path) -> None:
    page = write_report(cell, tmp_path / "run.html", explore=0)
    shown = next(one for one in data_of(page)["curves"] if one["set"] == "clean")
    assert dict(zip(shown["radii"], shown["accuracy"], strict=True)) == curve
    text = write_report(cell.parents[1], tmp_path / "sweep.html").read_text(encoding="utf-8")
    for value in (metrics["accuracy"], curve[1.0], curve[2.0]):
        assert f"{value:.1%}".replace(".0%", "%") in text
