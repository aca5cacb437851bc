"""Files of others are those that were fetched, and their licence goes with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from crfl_reports.pages.report import asset

from docs import vendored


def test_files_of_others_are_what_was_fetched() -> None:
    assert vendored.differences() == []
    assert vendored.main([]) == 0


def test_a_changed_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vendored.json", *vendored.FILES):
        (tmp_path / name).write_bytes((vendored.FOLDER / name).read_bytes())
    (tmp_path / "uPlot.min.css").write_text("body {}")
    monkeypatch.setattr(vendored, "FOLDER", tmp_path)
    monkeypatch.setattr(vendored, "RECORD", tmp_path / "vendored.json")
    assert vendored.differences() == ["uPlot.min.css"]
    assert vendored.main([]) == 2


def test_the_licence_goes_into_every_page(report: Path) -> None:
    licence = asset("vendored/LICENSE")
    assert "MIT" in licence
    assert "*/" not in licence
    assert licence in report.read_text(encoding="utf-8")
