"""Runs, their reports, and a browser that opens them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import crfl_reports.pages
import pytest

import crfl_core
from tests.reports.browsing import Opened, is_elsewhere

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SMALL = (
    "rounds=20",
    "attack.rounds=[10]",
    "votes.models=64",
    'certificates=["paper", "pathwise-linear", {type = "tail", continuations = 10, selection = 5}]',
)
FEW = ("rounds=8", "attack.rounds=[5]", "votes.models=64", 'certificates=["pathwise-linear"]')
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def data_of(report: Path) -> dict[str, Any]:
    """Read the data block of a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', report.read_text("utf-8"), re.S)
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small finished run with an attack and three certificates. Shared: copy it before you change anything."""
    return crfl_core.run(overrides=SMALL, out=tmp_path_factory.mktemp("pages") / "run").path


@pytest.fixture(scope="session")
def report(run_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of that run."""
    return crfl_reports.pages.write_report(run_directory, tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of an attacked run, their clean twins, and the first under another rule. Shared, as the run is."""
    path = tmp_path_factory.mktemp("folder")
    kept = (*FEW, "storage.keep='models'", "storage.figures=[]")
    clean = [one for one in kept if not one.startswith("attack")]
    for seed in (0, 1):
        crfl_core.run(overrides=[*kept, f"seed={seed}"], out=path / f"attacked-{seed}")
        crfl_core.run(overrides=[*clean, "attack=none", f"seed={seed}"], out=path / f"clean-{seed}")
    median = ("aggregation=median", "certificates=[]")
    crfl_core.run(overrides=[*kept, *median], out=path / "median")
    crfl_core.run(overrides=[*clean, "attack=none", *median], out=path / "clean-median")
    crfl_reports.pages.write_report(path)
    return path


@pytest.fixture
def own_run(run_directory: Path, tmp_path: Path) -> Path:
    """Return a copy of the run to change."""
    return Path(shutil.copytree(run_directory, tmp_path / "run"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start a headless browser of this machine. Where changes are judged, a missing one is a failure."""
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


@pytest.fixture
def opened(browser: Browser, report: Path) -> Iterator[Opened]:
    """Opens a page, the report if no other is given, and complains about errors and requests when the test is over."""
    complaints: list[str] = []
    contexts = []

    def open_page(path: Path | None = None, *, width: int = 1100, scheme: Literal["light", "dark"] = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda sent: complaints.append(sent.url) if is_elsewhere(sent.url) else None)
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.goto((path or report).as_uri())
        page.wait_for_selector("#figure-curves canvas, #figure-folder canvas")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
