"""A sweep runs side by side, goes on after an interrupt, and survives what fails."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from crfl_experiments.sweeps import SweepResult, sweep
from crfl_experiments.sweeps.cells import define
from crfl_experiments.sweeps.folder import SweepFolder
from crfl_experiments.sweeps.overview import format_duration
from crfl_experiments.sweeps.pool import EARLY_WORKERS, start_worker_early
from crfl_experiments.sweeps.sweep_runner import run_sweep

from crfl_core import CrflError, run
from crfl_core.runs.checkpoints import read_checkpoint
from crfl_core.runs.run_directory import RunDirectory
from tests.experiments.support import SMALL, different_files, small


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep of four cells, which two processes ran. Shared: copy it before you change anything."""
    path = tmp_path_factory.mktemp("sweep") / "small"
    sweep(SMALL, vary={"server.noise_std": [0.01, 0.1]}, seeds=2, out=path, workers=2)
    return path


def test_processes_compute_the_bits_of_a_run_on_its_own(done: Path, tmp_path: Path) -> None:
    result = SweepResult(done)
    assert result.is_finished
    one = result.cells[-1]
    assert one.settings == {"server.noise_std": 0.1, "seed": 1}
    assert one.run.config.seed == 1
    alone = run(one.cell.config, out=tmp_path / "alone")
    assert different_files(RunDirectory(one.path), alone.directory) == []
    assert RunDirectory(one.path).read_json("environment.json")["threads"] == 1


def test_the_long_table_holds_every_number_of_every_cell(done: Path) -> None:
    result = SweepResult(done)
    with (done / "sweep.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0])[:3] == ["cell", "server.noise_std", "seed"]
    for one in result.cells:
        metrics = one.run.metrics
        own = [row for row in table if row["cell"] == one.cell.name]
        (accuracy,) = (row for row in own if row["measure"] == "accuracy" and row["test_set"] == "clean")
        assert float(accuracy["value"]) == metrics.accuracy
        assert (float(accuracy["server.noise_std"]), int(accuracy["seed"])) == tuple(one.settings.values())
        curve = metrics.curves[0]
        certified = [row for row in own if row["measure"] == "certified_accuracy" and row["test_set"] == curve.test_set]
        assert [float(row["radius"]) for row in certified] == list(curve.radii)
        assert [float(row["value"]) for row in certified] == list(curve.certified_accuracy)


def test_parquet_and_pandas_hold_the_same(done: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = SweepResult(done).to_pandas()
    stored = pandas.read_parquet(done / "sweep.parquet")
    assert list(stored.columns) == list(frame.columns)
    assert len(stored) == len(frame)
    assert stored["value"].tolist() == frame["value"].tolist()


def test_a_notebook_shows_every_cell(done: Path) -> None:
    text = SweepResult(done)._repr_html_()
    assert text.count("<tr>") == 5
    assert "server.noise_std" in text
    assert "accuracy (clean)" in text


def test_a_finished_sweep_is_not_run_again(done: Path) -> None:
    stamps = {path: path.stat().st_mtime_ns for path in done.glob("cells/*/status.json")}
    sweep(SMALL, vary={"server.noise_std": [0.01, 0.1]}, seeds=2, out=done)
    assert {path: path.stat().st_mtime_ns for path in done.glob("cells/*/status.json")} == stamps


def test_another_sweep_does_not_get_into_the_folder(done: Path, tmp_path: Path) -> None:
    with pytest.raises(CrflError, match=r"holds another sweep: continue that one with `crfl sweep .*small`"):
        sweep(SMALL, seeds=3, out=done)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(CrflError, match="exists but is not a sweep folder"):
        sweep(SMALL, seeds=3, out=tmp_path)
    with pytest.raises(CrflError, match="is a file"):
        sweep(SMALL, seeds=3, out=tmp_path / "notes.txt")
    with pytest.raises(CrflError, match="no folder of a sweep"):
        SweepResult(tmp_path)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_cell_that_fails_is_noted_and_stops_no_other(workers: int, tmp_path: Path) -> None:
    definition = define(small(grid={"attack.poisoned_per_batch": [5, 5000], "votes.models": [8, 16]}))
    failures = run_sweep(definition, tmp_path / "sweep", workers, quiet=True)
    result = SweepResult(tmp_path / "sweep")
    assert [one.note.state for one in result.cells] == ["finished", "finished", "failed", "failed"]
    assert sorted(failures) == sorted(one.cell.name for one in result.failed)
    assert all("poisoned_per_batch" in reason for reason in failures.values())
    assert all(one.note.reason in failures.values() for one in result.failed)
    with pytest.raises(CrflError):
        _ = result.failed[0].run


def test_what_plugins_print_goes_to_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loud.py").write_text(
        "import sys, torch\n\n\ndef net():\n    print('to output')\n    print('to errors', file=sys.stderr)\n"
        "    return torch.nn.Linear(64, 10)\n"
    )
    loud = {"type": "module", "path": f"{tmp_path / 'loud.py'}:net"}
    table = {"list": [{"model": loud}, {"model": "softmax"}], "seeds": 1}
    run_sweep(define(small(**table)), tmp_path / "sweep", workers=2, quiet=True)
    assert {"to output", "to errors"} <= set((tmp_path / "sweep" / "workers.log").read_text().splitlines())
    assert "to " not in "".join(capfd.readouterr())


def test_the_worker_that_starts_ahead_takes_the_first_cell_or_ends(tmp_path: Path) -> None:
    with start_worker_early():
        (early,) = EARLY_WORKERS
        run_sweep(define(small(seeds=2)), tmp_path / "sweep", workers=2, quiet=True)
        assert EARLY_WORKERS == []
        assert early._process.poll() is not None
    assert SweepResult(tmp_path / "sweep").is_finished
    with start_worker_early():
        (unused,) = EARLY_WORKERS
    assert unused._process.poll() is not None


def test_a_worker_that_dies_is_a_failed_cell(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os, signal\nimport torch\n\n\ndef net():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    deadly = {"type": "module", "path": f"{tmp_path / 'deadly.py'}:net"}
    table = {"list": [{"model": deadly}, {"model": "softmax"}], "seeds": 1}
    failures = run_sweep(define(small(**table)), tmp_path / "sweep", workers=2, quiet=True)
    result = SweepResult(tmp_path / "sweep")
    assert [one.note.state for one in result.cells] == ["failed", "finished"]
    assert "its process was ended by signal 9: if memory ran out, use fewer --workers" in str(failures)


def test_a_damaged_cell_is_told_and_left_out_of_the_table(done: Path, tmp_path: Path) -> None:
    copy = tmp_path / "small"
    shutil.copytree(done, copy)
    name = SweepResult(copy).cells[0].cell.name
    (copy / "cells" / name / "metrics.json").write_text("{}")
    failures = run_sweep(SweepFolder(copy).definition, copy, quiet=True)
    assert "damaged" in failures[name]
    assert "remove" in failures[name]
    assert name not in (copy / "sweep.csv").read_text()
    assert (copy / "sweep.csv").read_text().count("\n") > 10


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_sweep_leaves_no_process_and_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('name = "long"\nrounds = 3000\n[sweep]\nseeds = 3\n')
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "crfl_core", "sweep", "config.toml", "--out", "out", "--workers", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("out/cells/*/checkpoint/state.safetensors"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    if number != signal.SIGKILL:
        assert process.returncode in (130, 143)
        assert "continue with `crfl sweep out`" in said
    for cell in tmp_path.glob("out/cells/*"):
        saved = read_checkpoint(when_free(RunDirectory(cell), 0 if number != signal.SIGKILL else 60))
        assert saved is not None
        assert saved.round >= 1


def when_free(directory: RunDirectory, seconds: float) -> RunDirectory:
    """Wait until no process writes to a directory any more."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with directory.lock():
                return directory
        except CrflError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.2)


def test_time_is_told_for_people() -> None:
    assert [format_duration(seconds) for seconds in (0.2, 59.5, 61, 7322)] == [
        "1 s",
        "1 min 0 s",
        "1 min 1 s",
        "2 h 2 min",
    ]


def test_notes_are_plain_files(done: Path) -> None:
    for one in SweepResult(done).cells:
        note = json.loads((done / "notes" / f"{one.cell.name}.json").read_text())
        assert note["state"] == "finished"
        assert note["seconds"] > 0
