"""`crfl sweep`, `crfl compare` and `crfl ls` as people type them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from crfl_experiments.sweeps import sweep

from crfl_core import run
from tests.experiments.support import SMALL

Crfl = Callable[..., CompletedProcess[str]]
CONFIG = """
name = "typed"
rounds = 2
votes = { models = 16 }
certificates = ["paper"]
storage = { figures = [] }
attack = { type = "model-replacement", clients = [1], rounds = [2] }
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep. Shared: copy it before you change anything."""
    path = tmp_path_factory.mktemp("sweep") / "small"
    sweep(SMALL, vary={"aggregation": ["fedavg", "rfa"]}, seeds=2, out=path, workers=1)
    return path


def test_cells_are_listed_with_what_they_share(crfl: Crfl, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    options = ["--vary", "rounds=2,4", "--vary", "threat.clients=[1],[1, 2]", "--dry-run"]
    listed = crfl("sweep", "config.toml", *options).stdout
    assert "<- the training of rounds=4, threat.clients=[1]" in listed
    assert listed.endswith("4 cells: 2 trained, 2 without training\n")
    told = json.loads(crfl("sweep", "config.toml", *options, "--json").stdout)
    assert [one["shares"] for one in told] == ["nothing", "training", "nothing", "training"]
    assert not (tmp_path / "sweeps").exists()


def test_a_sweep_is_run_told_and_resumed(crfl: Crfl, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(f"{CONFIG}[sweep]\nseeds = 2\n")
    arguments = ["--zip", "server.noise_std=0.01,0.02", "--zip", "votes.models=8,16", "--link", "votes.noise_std=0.01"]
    first = crfl("sweep", "config.toml", *arguments, "--workers", "1", "--json")
    assert first.returncode == 0, first.stderr
    told = json.loads(first.stdout)
    assert told["path"] == "sweeps/typed"
    assert told["cells"][0]["settings"] == {
        "server.noise_std": 0.01,
        "votes.models": 8,
        "seed": 0,
        "votes.noise_std": 0.01,
    }
    assert {one["state"] for one in told["cells"]} == {"finished"}
    name = told["cells"][0]["cell"]
    shutil.rmtree(tmp_path / "sweeps" / "typed" / "cells" / name)
    assert crfl("sweep", "sweeps/typed", "--quiet").stdout == "sweeps/typed\n"
    assert (tmp_path / "sweeps" / "typed" / "cells" / name / "metrics.json").exists()
    assert "4 of 4 cells are finished" in crfl("sweep", "sweeps/typed").stdout
    refused = crfl("sweep", "sweeps/typed", "--seeds", "3")
    assert refused.returncode == 2
    assert "resumes with its own options" in refused.stderr


def test_failed_cells_are_told_by_the_exit_status(crfl: Crfl, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    told = crfl("sweep", "config.toml", "--vary", "attack.poisoned_per_batch=5,5000", "--workers", "1")
    assert told.returncode == 1
    assert "1 of 2 cells are finished" in told.stdout
    assert "failed: poisoned_per_batch-5000" in told.stdout
    assert "mapping" not in told.stdout  # the user typed none
    assert told.stdout.endswith("more: crfl compare sweeps/typed, crfl open sweeps/typed\n")
    assert "1/2 cells, 1 failed" in told.stderr


def test_a_sweep_in_a_folder_that_names_other_code_needs_trust(crfl: Crfl, done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "theirs")
    assert crfl("sweep", "theirs").returncode == 0
    with (tmp_path / "theirs" / "sweep.toml").open("a") as file:
        file.write('\n[dataset]\ntype = "arrays"\ncallable = "their_code:samples"\n')
    refused = crfl("sweep", "theirs")
    assert refused.returncode == 2
    assert "theirs: runs third-party code: read its sweep.toml, then give --trust" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--vary", "rounds"], "--vary rounds: write it as key=..."),
        (["--vary", "rounds=1,,2"], "--vary rounds=1,,2: a value is missing"),
        (["--vary", "rounds=1", "--vary", "rounds=2"], "--vary rounds: is given twice"),
        (["--vary", "nosuch=1"], "the cell with nosuch=1: nosuch = 1: unknown key"),
        (["--link", "rounds=seed+"], "sweep.linked: rounds = 'seed+': cannot be read"),
        (["--seeds", "0"], "sweep.seeds: found 0"),
        (["--workers", "0"], "--workers 0: must be at least 1"),
        (["--set", "rounds"], "--set rounds: write it as key=value"),
        (["missing.toml"], "missing.toml: no such file"),
    ],
)
def test_bad_input_is_a_sentence(arguments: list[str], complaint: str, crfl: Crfl, tmp_path: Path) -> None:
    done = crfl("sweep", *arguments, "--out", "out")
    assert done.returncode == 2
    assert complaint in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_file_that_describes_a_sweep_is_no_run(crfl: Crfl, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(f"{CONFIG}[sweep]\nseeds = 2\n")
    refused = crfl("run", "config.toml")
    assert refused.returncode == 2
    assert "start them with `crfl sweep config.toml`" in refused.stderr


def test_a_folder_that_is_no_sweep_is_refused(crfl: Crfl, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no folder of a sweep" in crfl("sweep", "empty").stderr


def test_a_sweep_is_compared_in_tables_and_as_json(crfl: Crfl, done: Path) -> None:
    shown = crfl("compare", done)
    assert shown.returncode == 0, shown.stderr
    assert "accuracy" in shown.stdout
    assert "95 % interval" in shown.stdout
    told = json.loads(crfl("compare", done, "--json").stdout)
    first, second = told["points"]
    assert (first["settings"], second["settings"]) == ({"aggregation": "fedavg"}, {"aggregation": "rfa"})
    assert second["differences"]["accuracy"]["n"] == 2
    assert max(map(len, shown.stdout.splitlines())) <= 110


def test_the_figure_of_a_sweep_lies_in_it(crfl: Crfl, done: Path, tmp_path: Path) -> None:
    pytest.importorskip("crfl_reports.figures")
    shutil.copytree(done, tmp_path / "sweep")
    assert "figure: sweep/compare.png" in crfl("compare", "sweep").stdout
    assert (tmp_path / "sweep" / "compare.png").read_bytes()[:4] == b"\x89PNG"


def test_figures_that_cannot_be_are_refused(crfl: Crfl, done: Path) -> None:
    cells = sorted((done / "cells").iterdir())
    assert (
        "--figure compare.bmp: must end with one of .png" in crfl("compare", *cells, "--figure", "compare.bmp").stderr
    )
    assert "say where the figure" in crfl("compare", *cells, "--against", "seed").stderr


def test_runs_are_listed_with_numbers_and_differences(crfl: Crfl, done: Path, tmp_path: Path) -> None:
    alone = run(SMALL, overrides=["rounds=4"], out=tmp_path / "all" / "alone")
    shutil.copytree(done, tmp_path / "all" / "sweep")
    damaged = tmp_path / "all" / "damaged"
    shutil.copytree(alone.path, damaged)
    (damaged / "metrics.json").write_text("{}")
    listed = json.loads(crfl("ls", "all", "--json").stdout)
    assert [one["name"] for one in listed][:2] == ["alone", "damaged"]
    assert [one["state"] for one in listed] == ["finished", "damaged", *["finished"] * 4]
    assert listed[0]["accuracy"] == alone.metrics.accuracy
    assert alone.metrics.backdoor is not None
    assert listed[0]["backdoor"] == alone.metrics.backdoor.success_rate
    assert listed[0]["settings"]["rounds"] == 4
    assert {one["settings"]["seed"] for one in listed} == {0, 1}
    assert listed[0]["size"] > 1000
    shown = crfl("ls", "all").stdout
    assert "alone" in shown
    assert "damaged" in shown
    ordered = json.loads(crfl("ls", "all", "--sort", "accuracy", "--json").stdout)
    numbers = [one["accuracy"] for one in ordered]
    assert numbers[:-1] == sorted(numbers[:-1], reverse=True)
    assert numbers[-1] is None


def test_the_best_certificate_for_one_client_is_listed(crfl: Crfl, tmp_path: Path) -> None:
    certified = run(overrides=["rounds=2", "attack.rounds=[1]"], out=tmp_path / "runs" / "one")
    expected = [
        curve.certified_accuracy[curve.radii.index(1.0)]
        for curve in certified.metrics.curves
        if curve.level == "client" and curve.test_set == "clean" and 1.0 in curve.radii
    ]
    (listed,) = json.loads(crfl("ls", "--json").stdout)
    assert listed["certified"] == max(expected, default=None)


def test_an_empty_and_a_missing_folder_are_told_apart(crfl: Crfl, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert crfl("ls", "empty").stdout == "empty: no runs here\n"
    missing = crfl("ls", "missing")
    assert missing.returncode == 2
    assert "missing: there is no such folder" in missing.stderr


def test_a_sweep_is_no_run_to_show(crfl: Crfl, done: Path) -> None:
    told = crfl("show", done)
    assert (told.returncode, told.stdout) == (2, "")
    assert f"{done}: holds a sweep: see it with `crfl compare {done}`" in told.stderr


def test_bad_options_of_a_figure_are_told_before_any_table(crfl: Crfl, done: Path) -> None:
    for options, message in {
        ("--measure", "nothing"): "--measure nothing: there is no such certificate: there are paper",
        ("--against", "rounds"): "--against rounds: was not varied: what was: aggregation",
        ("--figure", "a.bmp"): "--figure a.bmp: must end with one of .png, .svg, .pdf",
    }.items():
        told = crfl("compare", done, *options)
        assert (told.returncode, told.stdout) == (2, "")
        assert message in told.stderr


def test_a_certificate_that_proves_nothing_says_so_in_comparisons(crfl: Crfl, done: Path) -> None:
    assert "paper: reproduction, not a proof" in crfl("compare", done).stdout
    assert json.loads(crfl("compare", done, "--json").stdout)["labels"] == {"paper": "reproduction, not a proof"}


def test_a_sweep_can_be_drawn(crfl: Crfl, done: Path) -> None:
    told = crfl("plot", done, "--figure", "curves", "--figure", "matrix")
    assert (told.returncode, told.stdout) == (0, "figures/curves.png\nfigures/matrix.png\n")
