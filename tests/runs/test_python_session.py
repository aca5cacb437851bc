"""In a Python session a result reads as one line, and runs show how far they are."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import crfl_core
from crfl_core import RunResult
from crfl_core.live_line import live_stream
from tests.oracle import tiny


class CellOutput(io.StringIO):
    """Stands for the output of a notebook's cell."""


CellOutput.__module__ = "ipykernel.iostream"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A small attacked run with one certificate."""
    return crfl_core.run(tiny(), out=tmp_path_factory.mktemp("session") / "run")


def test_a_result_reads_as_its_path_and_main_numbers(result: RunResult) -> None:
    metrics = result.metrics
    assert metrics.backdoor is not None
    assert repr(result) == (
        f"<RunResult {result.path}: {result.verdict} accuracy {metrics.accuracy:.3f}; attack success rate "
        f"{metrics.backdoor.success_rate:.3f}; certificates: paper (reproduction, not a proof)>"
    )


def test_a_damaged_result_still_reads_as_its_path(result: RunResult, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(result.path, copy)
    damaged = crfl_core.load(copy)
    (copy / "metrics.json").write_text("{}")
    assert repr(damaged) == f"<RunResult {copy}>"


def test_a_script_is_silent_unless_it_asks_for_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    crfl_core.run(tiny(certificates=[]), out=tmp_path / "silent")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    crfl_core.run(tiny(certificates=[]), out=tmp_path / "asked", progress=True)
    told = capsys.readouterr()
    assert (told.out, "training" in told.err) == ("", True)


def test_a_notebook_shows_progress_in_the_output_of_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = CellOutput()
    monkeypatch.setattr(sys, "stdout", cell)
    assert live_stream() is cell
    crfl_core.run(tiny(certificates=[], rounds=2), out=tmp_path / "run")
    assert "training" in cell.getvalue()
    assert cell.getvalue().endswith("\r")
    before = cell.getvalue()
    crfl_core.run(tiny(certificates=[], rounds=2), out=tmp_path / "quiet", progress=False)
    assert cell.getvalue() == before


def test_progress_that_the_config_names_is_not_shown_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = CellOutput()
    monkeypatch.setattr(sys, "stdout", cell)
    crfl_core.run(tiny(certificates=[], trackers=["progress"]), out=tmp_path / "run")
    text = cell.getvalue()
    cell.seek(0)
    cell.truncate()
    crfl_core.run(tiny(certificates=[]), out=tmp_path / "other")
    assert abs(text.count("training") - cell.getvalue().count("training")) <= 2
