"""Runs, their reports, and a browser that opens them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import crfl_core
import crfl_pages

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SMALL = (
    "rounds=20",
    "attack.rounds=[10]",
    "votes.models=64",
    'certificates=["paper", "pathwise-linear", {type = "tail", continuations = 10, selection = 5}]',
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def data_of(report: Path) -> dict[str, Any]:
    """The data block of a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', report.read_text("utf-8"), re.S)
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run with an attack and three certificates. Shared: copy it before you change anything."""
    return crfl_core.run(overrides=SMALL, out=tmp_path_factory.mktemp("pages") / "run").path


@pytest.fixture(scope="session")
def report(run_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of that run."""
    return crfl_pages.write_report(run_directory, tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture
def own_run(run_directory: Path, tmp_path: Path) -> Path:
    """A copy of the run to do things to."""
    return Path(shutil.copytree(run_directory, tmp_path / "run"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless browser of this machine. Where changes are judged, a missing one is a failure."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path = None
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("no browser: install Chromium and the package playwright, see .ci/run")
        pytest.skip("there is no Chromium here, or the package playwright is missing")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()
