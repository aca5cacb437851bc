"""A run starts without a wait: it imports nothing that it does not use, and draws figures after it has told results."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from crfl_reports.gallery.training import partition_files

from crfl_core.cli import output

Crfl = Callable[..., CompletedProcess[str]]

UNUSED = (
    "IPython",
    "crfl_aggregators.krum",
    "crfl_attacks.alie",
    "crfl_experiments.commands",
    "crfl_datasets.loan",
    "crfl_reports.figures",
    "crfl_models.networks",
    "crfl_reports.pages",
    "crfl_experiments.paper",
    "crfl_experiments.sweeps",
    "crfl_trackers.mlflow",
    "flwr",
    "jinja2",
    "matplotlib",
    "mlflow",
    "pandas",
    "pyarrow",
    "ray",
    "rich",
    "scipy",
    "sklearn",
    "tensorboard",
)
"""What a run of the default config, an attack on digits with two certificates, has no use for before it trains."""
WATCHED = """
import os, sys
from crfl_core.cli import main, output

shown = output.progress

def progress(quiet):
    from crfl_core.extend import Tracker, hookimpl

    class Last(Tracker):
        @hookimpl(trylast=True)
        def crfl_run_started(self, run):
            print(*sorted(sys.modules), flush=True)
            os._exit(0)

    return [*shown(quiet), Last().with_name("last")]

output.progress = progress
main()
"""


def test_nothing_is_imported_that_a_run_does_not_use_before_the_first_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WATCHED, "run", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=os.environ)
    imported = set((done.stdout + done.stderr).splitlines()[-1].split())
    assert {"torch", "pydantic", "crfl_trackers.progress", "crfl_datasets.digits"} <= imported
    assert imported & set(UNUSED) == set()


def test_results_are_shown_before_figures_are_drawn(
    crfl: Crfl, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> dict[str, bytes]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("crfl_reports.gallery.training.partition_files", fail)
    failed = crfl("run", *small, "--out", "run")
    assert failed.returncode == 2
    assert failed.stdout.startswith("Not certified: paper is a reproduction, not a proof.\n\nrun: 50 clients")
    assert "resume with `crfl run run`" in failed.stderr
    monkeypatch.setattr("crfl_reports.gallery.training.partition_files", partition_files)
    resumed = crfl("run", "run")
    assert resumed.returncode == 0
    assert resumed.stdout == failed.stdout


@pytest.mark.parametrize("full", [[], ["--full"]])
def test_results_are_shown_once(crfl: Crfl, small: list[str], full: list[str]) -> None:
    result = crfl("run", *small, *full, "--out", "run")
    assert result.stdout == crfl("show", "run", *full).stdout


def test_programs_get_results_when_the_run_is_finished(
    crfl: Crfl, small: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(output, "restore_stdout", None)  # which must not be called
    assert crfl("run", *small, "--quiet", "--out", "quiet").stdout == "quiet\n"
    told = crfl("run", *small, "--json", "--out", "json").stdout
    assert json.loads(told) == json.loads((tmp_path / "json" / "metrics.json").read_text())


def test_what_plugins_print_still_goes_elsewhere_after_the_command_has_spoken(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with output.redirect_plugin_output():
        print("a plugin")
        with output.restore_stdout():
            print("the command")
            os.write(1, b"its process\n")
        os.write(1, b"a library\n")
        print("another plugin")
    print("the end")
    found = capfd.readouterr()
    assert sorted(found.out.splitlines()) == ["its process", "the command", "the end"]
    assert sorted(found.err.splitlines()) == ["a library", "a plugin", "another plugin"]


def test_garbage_is_collected_again_once_libraries_are_loaded() -> None:
    assert gc.isenabled()
    with output.pause_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), output.pause_garbage_collection():
        raise ImportError
    assert gc.isenabled()
    gc.unfreeze()
