"""Pictures that need the data, or other runs, stand in the page as they would be printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import crfl_core
import crfl_pages
from tests.conftest import SMALL

PICTURE = re.compile(r'<img src="data:image/svg\+xml;base64,[^"]+" alt="([^"]+)"')


def test_the_backdoor_is_shown_and_what_it_turns_predictions_into(report: Path) -> None:
    found = PICTURE.findall(report.read_text(encoding="utf-8"))
    assert found == [crfl_core.FIGURES[name].description for name in ("samples", "flips")]


def test_a_run_of_others_draws_nothing(own_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CRFL_CONFIG_DIR", str(tmp_path / "somebody-else"))
    text = crfl_pages.write_report(own_run, explore=0).read_text(encoding="utf-8")
    assert not PICTURE.findall(text)
    assert "crfl report RUN --trust" in text


def test_a_folder_sets_a_run_beside_its_clean_twin(tmp_path: Path) -> None:
    kept = (*SMALL, "storage.keep='models'", "storage.figures=[]")
    crfl_core.run(overrides=kept, out=tmp_path / "attacked")
    crfl_core.run(
        overrides=[one for one in kept if not one.startswith("attack")] + ["attack=none"], out=tmp_path / "clean"
    )
    text = crfl_pages.write_report(tmp_path).read_text(encoding="utf-8")
    assert crfl_core.FIGURES["closeness"].description in PICTURE.findall(text)


def test_a_run_that_kept_its_distances_shows_them(tmp_path: Path) -> None:
    run = crfl_core.run(overrides=(*SMALL, "storage.keep='distances'", "storage.figures=[]"), out=tmp_path / "run")
    text = crfl_pages.write_report(run.path, explore=0).read_text(encoding="utf-8")
    assert PICTURE.findall(text)[0] == crfl_core.FIGURES["closeness"].description
    assert 'id="closeness"' in text


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    crfl_core.run(overrides=(*SMALL, "storage.figures=[]"), out=tmp_path / "alone")
    text = crfl_pages.write_report(tmp_path).read_text(encoding="utf-8")
    assert "Distance to the clean twin in every round: " in text
