"""Sweeps on a Ray cluster: the cells of a sweep on one machine, and what becomes of them when workers die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import tomli_w
from crfl_experiments.sweeps.cell_runner import Job
from crfl_experiments.sweeps.cells import define
from crfl_experiments.sweeps.folder import SweepFolder
from crfl_experiments.sweeps.pool import jobs_to_line
from crfl_experiments.sweeps.ray_pool import CellActor
from crfl_experiments.sweeps.sweep_runner import run_sweep

from crfl_core.errors import ConfigError
from crfl_core.runs.run_directory import RunDirectory
from tests.experiments.support import SMALL, different_files, small
from tests.ray_nodes import Nodes, all_ended, ended, marked, ray_or_skip

pytestmark = [pytest.mark.ray, pytest.mark.slow]
ray = ray_or_skip()


@pytest.fixture(autouse=True)
def found_by_name(two_nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` looks there first."""
    monkeypatch.setenv("RAY_ADDRESS", two_nodes.address)


def test_cells_are_those_of_a_sweep_on_this_machine(
    tmp_path: Path, crfl: Callable[..., CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that take their training from others; one fails, and the others do not mind."""
    monkeypatch.chdir(tmp_path)
    table = {"zip": {"rounds": [2, 3, 3], "votes.models": [16, 16, 8]}, "seeds": 1}
    config = small(**table)
    (tmp_path / "small.toml").write_text(tomli_w.dumps(config))
    assert run_sweep(define(config), tmp_path / "here", workers=1, quiet=True) == {}
    done = crfl("sweep", "small.toml", "--engine", "ray", "--out", "there", "--quiet")
    assert done.returncode == 0, done.stderr
    here, there = SweepFolder(tmp_path / "here"), SweepFolder(tmp_path / "there")
    names = [cell.name for cell in define(config).cells()]
    assert len(names) == 3
    for name in names:
        assert different_files(RunDirectory(here.cell(name)), RunDirectory(there.cell(name))) == []
        assert there.note(name).shares == here.note(name).shares


def test_a_cell_goes_on_elsewhere_when_its_worker_dies(two_nodes: Nodes, tmp_path: Path) -> None:
    """Killed once after some rounds, without a word."""
    config = {**SMALL, "rounds": 400, "storage": {"figures": [], "checkpoint_seconds": 0}, "sweep": {"seeds": 1}}
    earlier = marked(two_nodes.mark).keys()  # workers of other tests may still be ending
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, warnings, json; from pathlib import Path\n"
            "from crfl_experiments.sweeps.cells import define\n"
            "from crfl_experiments.sweeps.sweep_runner import run_sweep\n"
            "print(run_sweep(define(json.loads(sys.argv[1])), Path(sys.argv[2]), quiet=True, engine='ray'))",
            json.dumps(config),
            str(tmp_path / "sweep"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    rounds = tmp_path / "sweep" / "cells"
    while process.poll() is None and sum(file.read_text().count("\n") for file in rounds.rglob("rounds.jsonl")) < 3:
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()
    found = {number: said for number, said in marked(two_nodes.mark).items() if number not in earlier}
    victim = next(number for number, said in found.items() if said.startswith("ray::CellActor"))
    os.kill(victim, signal.SIGKILL)
    out, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert out == "{}\n"
    assert said.count("its cell resumes from its checkpoint on another worker") == 1


def test_ctrl_c_saves_the_cells_and_ends_the_workers(two_nodes: Nodes, tmp_path: Path, mark: str) -> None:
    config = {**SMALL, "rounds": 20_000, "sweep": {"seeds": 2}, "evaluation": {"every": 0}}
    (tmp_path / "long.toml").write_text(tomli_w.dumps(config))
    process = subprocess.Popen(
        [sys.executable, "-m", "crfl_core", "sweep", "long.toml", "--engine", "ray", "--out", "sweep", "--quiet"],
        cwd=tmp_path,
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    cells = tmp_path / "sweep" / "cells"
    with ended(process):
        while process.poll() is None and sum(1 for file in cells.rglob("rounds.jsonl") if file.read_text()) < 2:
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=90)[1]
    assert process.returncode == 130, said
    assert "interrupted: continue with `crfl sweep sweep`" in said
    assert len(list(cells.glob("*/checkpoint"))) == 2
    assert all_ended(mark) == {}
    assert [said for said in marked(two_nodes.mark).values() if said.startswith("ray::CellActor")] == []


def test_an_unknown_engine_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--engine dask: must be one of local, ray"):
        run_sweep(define(small(seeds=1)), tmp_path / "sweep", engine="dask")
    assert not (tmp_path / "sweep").exists()


def test_a_machine_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    worker = CellActor(str(tmp_path / "elsewhere" / "sweep.toml"))
    worker.work(jobs_to_line([Job("cell", "", tmp_path)]))
    (said,) = worker.take_messages()
    assert said["event"] == "failed"
    assert f"does not see {tmp_path / 'elsewhere'}: a sweep on several machines needs a folder" in said["reason"]
