"""Figures that need the data, or other runs: numbers for the page to draw, and pictures of inputs."""

from __future__ import annotations

import re
from pathlib import Path

import crfl_reports.pages
import numpy as np
import pytest
from crfl_reports.figures import Grid, Heat, Line, Panel, Panels
from crfl_reports.pages.figure_data import partition_data, shape_data

import crfl_core
from crfl_core.reporting.metrics import ClassHistogram
from tests.conftest import SMALL
from tests.reports.conftest import data_of

PICTURE = re.compile(r'<img src="data:image/svg\+xml;base64,[^"]+" alt="([^"]+)"')


def test_the_backdoor_is_shown_and_what_it_turns_predictions_into(report: Path, run_directory: Path) -> None:
    assert PICTURE.findall(report.read_text(encoding="utf-8")) == [crfl_core.FIGURES["samples"].description]
    flips = data_of(report)["shown"]["flips"]
    backdoor = crfl_core.load(run_directory).metrics.backdoor
    assert backdoor is not None
    counts = np.array([[cell or 0 for cell in row] for row in flips["measures"][0]["values"]])
    assert counts.sum() == backdoor.samples
    assert counts[:, backdoor.target].sum() / backdoor.samples == pytest.approx(backdoor.success_rate)


def test_the_partition_of_the_page_is_that_of_the_metrics(report: Path, run_directory: Path) -> None:
    partition, shown = crfl_core.load(run_directory).metrics.partition, data_of(report)["shown"]["partition"]
    assert shown["measures"][0]["values"] == [list(row) for row in partition.counts]
    assert shown["totals"] == list(partition.sizes)


def test_many_clients_share_columns() -> None:
    counts = np.arange(300).reshape(3, 100) % 7
    classes = ("a", "b", "c")
    found = partition_data(ClassHistogram(classes=classes, clients=(), counts=tuple(map(tuple, counts.tolist()))))
    assert (len(found["columns"]), found["columns"][0], found["columns"][-1]) == (60, "1 to 1", "99 to 100")
    sizes = [int(end) - int(start) + 1 for start, end in (name.split(" to ") for name in found["columns"])]
    assert np.dot(sizes, found["totals"]) == pytest.approx(counts.sum())


def test_a_folder_sets_a_run_beside_its_clean_twin(tmp_path: Path) -> None:
    kept = (*SMALL, "storage.keep='models'", "storage.figures=[]")
    crfl_core.run(overrides=kept, out=tmp_path / "attacked")
    crfl_core.run(
        overrides=[one for one in kept if not one.startswith("attack")] + ["attack=none"], out=tmp_path / "clean"
    )
    shown = data_of(crfl_reports.pages.write_report(tmp_path))["shown"]
    (line,) = shown["closeness"]["panels"][0]["lines"]
    attacked, clean = (crfl_core.load(tmp_path / name) for name in ("attacked", "clean"))
    assert line["values"][-1] == pytest.approx(float((attacked.parameters - clean.parameters).norm()), rel=1e-5)
    assert [measure["name"] for measure in shown["matrix"]["measures"]][:2] == ["attack success", "accuracy"]
    assert shown["matrix"]["rows"] == ["model-replacement", "none"]


def test_a_run_that_kept_its_distances_shows_them(tmp_path: Path) -> None:
    run = crfl_core.run(overrides=(*SMALL, "storage.keep='distances'", "storage.figures=[]"), out=tmp_path / "run")
    report = crfl_reports.pages.write_report(run.path, explore=0)
    (line,) = data_of(report)["shown"]["closeness"]["panels"][0]["lines"]
    assert line["values"] == pytest.approx(run.distances, rel=1e-5)
    assert 'id="closeness"' in report.read_text(encoding="utf-8")


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    crfl_core.run(overrides=(*SMALL, "storage.figures=[]"), out=tmp_path / "alone")
    text = crfl_reports.pages.write_report(tmp_path).read_text(encoding="utf-8")
    assert "Distance to the clean twin in every round: " in text


def test_lines_stand_at_the_places_of_them_all() -> None:
    lines = [Line("one", [1, 2, 4], [0.5, 0.25, np.nan]), Line("other", [3], [1.0], [0.5], [2.0]), Line("none", [], [])]
    found = shape_data(Panels([Panel(lines, "x", "y", y_range=(0, 1), marked=[2])], "title", "marked"))
    (panel,) = found["panels"]
    assert panel["x"] == [1, 2, 3, 4]
    assert panel["share"]
    one, other = panel["lines"]
    assert (one["values"], one["number"]) == ([0.5, 0.25, None, None], 0)
    assert (other["values"], other["band"]) == ([None, None, 1, None], [[None, None, 0.5, None], [None, None, 2, None]])


def test_a_grid_says_of_how_many_its_numbers_are_the_means() -> None:
    low, high, counts = [[0.5, np.nan]], [[2, np.nan]], [[3, 0]]
    table = Heat([[1.0, np.nan]], "percent", "success", (0, 100), low=low, high=high, counts=counts)
    found = shape_data(Grid([table], ["a"], ["b", "c"], "attack", "defence", empty="unknown"))
    (measure,) = found["measures"]
    assert (measure["values"], measure["low"], measure["counts"]) == ([[1, None]], [[0.5, None]], [[3, 0]])
    assert (measure["ends"], found["empty"]) == ([0, 100], "unknown")
