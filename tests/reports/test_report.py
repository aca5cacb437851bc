"""`crfl open`: one file, from runs of the user or of third parties."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import crfl_reports.pages
import numpy as np
import pytest
from crfl_experiments.sweeps.cells import define
from crfl_experiments.sweeps.folder import Note, SweepFolder
from crfl_reports.pages.experiment_table import Measured, certified_against, measure
from crfl_reports.pages.folder_page import runs_in
from crfl_reports.pages.samples import round_down, tables

import crfl_core
from crfl_core.errors import DataError, StoreError
from crfl_core.plugin_api.dataset import Dataset
from crfl_core.records.inputs import Data, Domain
from tests.reports.conftest import SMALL, data_of

Crfl = Callable[..., CompletedProcess[str]]
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def test_a_report_is_one_small_file_that_asks_for_nothing(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    assert len(text) < 3_000_000
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_curves_have_every_digit_of_the_metrics(report: Path, run_directory: Path) -> None:
    metrics = json.loads((run_directory / "metrics.json").read_text())
    shown = data_of(report)["curves"]
    assert [curve["accuracy"] for curve in shown] == [curve["certified_accuracy"] for curve in metrics["curves"]]
    assert [curve["rate"] for curve in shown] == [curve["certified_rate"] for curve in metrics["curves"]]


def test_the_summary_tells_who_attacked_and_what_is_certified(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    assert "50 clients with" in text
    assert "Attack: model-replacement: 1 attacker (client 0), round 10, scale 10." in text


def test_accuracy_that_was_measured_once_makes_no_line(report: Path, tmp_path: Path, crfl: Crfl) -> None:
    assert "Accuracy in every round" in report.read_text(encoding="utf-8")
    settings = ["rounds=3", "attack=none", "certificates=[]", "evaluation.every=0", "storage.figures=[]"]
    run = crfl_core.run(overrides=settings, out=tmp_path / "once")
    assert crfl("open", run.path, "--no-browser").returncode == 0
    text = (run.path / "report.html").read_text(encoding="utf-8")
    assert "Accuracy in every round" not in text
    assert "Weights that reached the model" in text


def test_the_verdict_is_the_first_line_of_the_summary(report: Path, run_directory: Path) -> None:
    run = crfl_core.load(run_directory)
    summary = report.read_text(encoding="utf-8").partition('id="summary-title">Summary</h2>')[2]
    assert summary.startswith(f'<p class="verdict">{run.verdict}</p>')


def test_every_certificate_has_a_row_of_its_own_proofs_first(report: Path) -> None:
    summary = report.read_text(encoding="utf-8").partition('<section id="certified"')[0]
    titles = re.findall(r'class="numbered"><h3>([^<]*)</h3>', summary)
    assert titles == ["Measured", "pathwise-linear", "tail", "paper"]
    for row in summary.split('class="numbered">')[2:]:
        title = re.match(r"<h3>([^<]*)</h3>", row)
        assert title is not None
        assert set(re.findall(r'data-metric="([a-z-]*)-[0-9]', row)) == {title[1]}
        assert "statement" in row


def test_the_config_says_where_values_came_from(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    assert "<td>--set rounds=20</td>" in text
    assert "<td>the default config</td>" in text
    assert "<td>default</td>" in text


def test_samples_are_those_of_the_tables(report: Path, run_directory: Path) -> None:
    shown = data_of(report)["samples"]["sets"]
    for found in tables(crfl_core.load(run_directory).directory):
        columns = [one for one in shown[found.test_set]["columns"] if one["certificate"] == found.certificate]
        column = next(one for one in columns if one["level"] == found.level)
        assert column["prediction"] == found.guarantee.prediction.tolist()
        radii = [np.nan if value is None else float(value) for value in column["radius"]]
        assert (np.isnan(radii) == np.isnan(found.guarantee.radius)).all()
        known = ~np.isnan(radii)
        assert (np.array(radii)[known] <= found.guarantee.radius[known]).all()


def test_tables_read_back_are_the_guarantees_of_the_run(run_directory: Path) -> None:
    run = crfl_core.load(run_directory)
    read = {(one.certificate, one.level, one.test_set): one.guarantee for one in tables(run.directory)}
    for one in run.certified:
        np.testing.assert_array_equal(read[one.certificate, one.level, one.test_set].radius, one.guarantee.radius)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1 + 0.2, 123456.7, 9.9999e-7, 1e-300, 3e200])
def test_radii_are_rounded_down(value: float) -> None:
    assert round_down(value) <= value
    assert round_down(value) >= value * 0.998


def test_a_report_leaves_the_run_what_it_was(own_run: Path, crfl: Crfl) -> None:
    assert crfl("open", own_run, "--no-browser", "--explore", "0").stdout.strip() == str(own_run / "report.html")
    verified = crfl("verify", own_run)
    assert verified.returncode == 0
    assert "files match their recorded digests" in verified.stdout


def test_a_replaced_run_takes_its_report_along(tmp_path: Path) -> None:
    fast = (*SMALL, 'certificates=["paper"]')
    run = crfl_core.run(overrides=fast, out=tmp_path / "run").path
    crfl_reports.pages.write_report(run, explore=0)
    crfl_core.run(overrides=fast, out=run, force=True)
    assert not (run / "report.html").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


class Hostile(Dataset):
    """Classes and options with names that would be markup."""

    title: str = EVIL

    def read(self) -> Data:
        labels = np.arange(90) % 3
        x = np.random.default_rng(0).uniform(size=(90, 4)) + labels[:, None]
        return Data(
            x=x[:60],
            y=labels[:60],
            test_x=x[60:],
            test_y=labels[60:],
            class_names=("a", EVIL, "c"),
            domain=Domain(0.0, 3.0),
        )


def test_names_in_a_run_never_become_markup(tmp_path: Path) -> None:
    config = {
        "dataset": "hostile",
        "partition": {"type": "iid", "clients": 3},
        "rounds": 2,
        "votes": {"models": 16},
        "certificates": ["paper"],
    }
    run = crfl_core.run(config, out=tmp_path / "run", plugins={"hostile": Hostile})
    assert EVIL in run.metrics.partition.classes
    report = crfl_reports.pages.write_report(run.path)
    text = report.read_text(encoding="utf-8")
    assert "alert(1)" in text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert EVIL in data_of(report)["classes"]


def test_a_damaged_run_has_no_report(own_run: Path, crfl: Crfl) -> None:
    table = next((own_run / "certificates").glob("*.csv"))
    table.write_text(table.read_text().replace("1", "2", 1))
    failed = crfl("open", "--no-browser", own_run)
    assert failed.returncode == 2
    assert table.name in failed.stderr
    assert not (own_run / "report.html").exists()


def test_what_is_no_run_is_said_so(tmp_path: Path, crfl: Crfl) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no finished run" in crfl("open", "--no-browser", "empty").stderr
    assert "not a run directory" in crfl("open", "--no-browser", "nowhere").stderr
    with pytest.raises(StoreError, match="not finished"):
        crfl_reports.pages.write_report(unfinished(tmp_path))


def unfinished(tmp_path: Path) -> Path:
    """A run that stopped in its first round."""
    from crfl_core.plugin_api.hookspecs import hookimpl
    from crfl_core.plugin_api.tracker import Tracker
    from crfl_core.records.ledger import RoundRecord

    class Impatient(Tracker):
        """Stops a run."""

        @hookimpl
        def crfl_round_finished(self, record: RoundRecord) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(overrides=SMALL, out=tmp_path / "unfinished", trackers=[Impatient()])
    return tmp_path / "unfinished"


def test_a_place_that_cannot_be_written_is_named(run_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="choose another --out"):
        crfl_reports.pages.write_report(run_directory, tmp_path / "no" / "folder.html", explore=0)


def test_the_page_of_a_sweep_tells_which_cells_are_missing(own_run: Path, tmp_path: Path) -> None:
    definition = define({"name": "small", "sweep": {"grid": {"rounds": [3, 4, 5]}}})
    folder = SweepFolder.open_or_create(tmp_path / "sweep", definition)
    finished, failed, _ = definition.cells()
    shutil.copytree(own_run, folder.cell(finished.name))
    folder.write_note(failed.name, Note("failed", "no <memory> left"))
    text = crfl_reports.pages.write_report(folder.path).read_text(encoding="utf-8")
    assert "1 of 3 cells failed" in text
    assert "no &lt;memory&gt; left" in text
    assert "1 of 3 cells are not finished" in text


def test_a_folder_shows_nested_runs_means_over_seeds_and_attackers(folder: Path) -> None:
    runs = {name: crfl_core.load(folder / name) for name in ("attacked-0", "attacked-1", "median")}
    text = (folder / "report.html").read_text(encoding="utf-8")
    mean = (runs["attacked-0"].metrics.accuracy + runs["attacked-1"].metrics.accuracy) / 2
    assert f'data-number="{mean!r}"' in text
    assert "model-replacement: 1 attacker (client 0), round 5, scale 10" in text
    assert "different attacks" in text
    assert text.count('<tr class="best">') == 2  # the best of the attacked, and of those that were not


def test_runs_in_nested_folders_are_found_and_sorted_by_number(own_run: Path, tmp_path: Path) -> None:
    for name in ("deep/er/scale-100", "deep/er/scale-9", "top"):
        shutil.copytree(own_run, tmp_path / "all" / name)
    found = [path.relative_to(tmp_path / "all").as_posix() for path in runs_in(tmp_path / "all")]
    assert found == ["deep/er/scale-9", "deep/er/scale-100", "top"]


def test_a_number_that_some_seeds_lack_has_no_mean(folder: Path) -> None:
    runs = [crfl_core.load(folder / name) for name in ("attacked-0", "median")]
    own, certificate = certified_against(1.0)(runs[0]) or (math.nan, "")
    assert measure(runs, certified_against(1.0)) == Measured(None, own, own, 1, certificate)
    assert measure(runs[:1], certified_against(40.0)).mean == 0.0  # no sample reaches it: a number, not a gap


def test_a_folder_of_runs_is_one_page_with_bands(own_run: Path, tmp_path: Path) -> None:
    cells = tmp_path / "sweep" / "cells"
    cells.mkdir(parents=True)
    shutil.copytree(own_run, cells / "a")
    crfl_core.run(overrides=(*SMALL, "seed=1"), out=cells / "b")
    crfl_core.run(overrides=(*SMALL, "training.learning_rate=0.25"), out=cells / "c")
    report = crfl_reports.pages.write_report(tmp_path / "sweep")
    assert report == tmp_path / "sweep" / "report.html"
    text, folder = report.read_text(encoding="utf-8"), data_of(report)["folder"]
    assert "cells/b" in text
    assert "training.learning_rate = 0.25" in text
    banded = [one for one in folder if one["runs"] == 2]
    assert banded
    for one in folder:
        low, middle, high = (one["accuracy"][name] for name in ("least", "mean", "most"))
        assert all(a <= b + 1e-12 and b <= c + 1e-12 for a, b, c in zip(low, middle, high, strict=True))
    metrics = crfl_core.load(cells / "c").metrics.curves
    alone = [one for one in folder if one["runs"] == 1]
    for curve in metrics:
        names = curve.certificate, curve.level, curve.test_set
        shown = next(one for one in alone if (one["certificate"], one["level"], one["set"]) == names)
        values = dict(zip(map(float, shown["radii"]), shown["accuracy"]["mean"], strict=True))
        for at, value in zip(curve.radii, curve.certified_accuracy, strict=True):
            assert values[at] == value


def test_open_writes_a_missing_report_and_prints_its_path(
    own_run: Path, crfl: Crfl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crfl_reports.pages.explorer.ATTACKERS", ())
    monkeypatch.setattr("crfl_reports.pages.explorer.SCALES", ())
    monkeypatch.setattr("crfl_reports.pages.explorer.RATIOS", ())
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert crfl("open", own_run).stdout.strip() == str(own_run / "report.html")
    before = (own_run / "report.html").stat().st_mtime_ns
    crfl("open", own_run)
    assert (own_run / "report.html").stat().st_mtime_ns == before


def test_open_hands_the_file_to_a_browser(own_run: Path, crfl: Crfl, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda address: not opened.append(address))  # type: ignore[func-returns-value]
    (own_run / "report.html").write_text("a page")
    assert "opened" in crfl("open", own_run).stdout
    assert opened == [(own_run / "report.html").resolve().as_uri()]
