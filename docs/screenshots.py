"""Make the pictures of reports: `python -m docs.screenshots [RUN]`.

Needs Chromium and the package playwright. The pictures go to docs/pictures/.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import crfl_reports.pages

import crfl_core
from docs.pictures import ATTACKED

PICTURES = Path(__file__).with_name("pictures")
MARGIN = 16.0
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
Shot = tuple[str, str, int, Literal["light", "dark"]]
"""The name of a picture, the section that it shows, how wide the window is, and its colours."""
OF_A_RUN: tuple[Shot, ...] = (
    ("report", "#summary", 1000, "light"),
    ("explorer", "#explorer", 1000, "dark"),
    ("narrow", "#certified", 400, "light"),
)
OF_A_FOLDER: tuple[Shot, ...] = (
    ("sweep", "#runs", 1000, "light"),
    ("side-by-side", "#together", 1000, "light"),
)
FOCUSED = "#figure-matrix td"
"""The cell that reads its numbers."""


def main(arguments: list[str]) -> None:
    """Take all pictures of a report, by default of a new run."""
    with TemporaryDirectory() as scratch:
        run = Path(arguments[0]) if arguments else crfl_core.run(out=Path(scratch, "digits")).path
        take(crfl_reports.pages.write_report(run, Path(scratch, "report.html")), OF_A_RUN)
        take(crfl_reports.pages.write_report(folder(Path(scratch, "folder"))), OF_A_FOLDER)


def folder(path: Path) -> Path:
    """Run two seeds of an attack against three rules, and their clean twins."""
    for rule in ("fedavg", "rfa", "median"):
        for seed in (0, 1):
            config = {**ATTACKED, "aggregation": rule, "seed": seed}
            crfl_core.run(config, out=path / f"{rule}-{seed}")
            crfl_core.run({**config, "attack": "none"}, out=path / f"{rule}-{seed}-clean")
    return path


def take(report: Path, shots: tuple[Shot, ...]) -> None:
    """Take pictures of sections of a report."""
    from playwright.sync_api import sync_playwright

    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        raise SystemExit("there is no Chromium here: install it first")
    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name, section, width, scheme in shots:
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page = context.new_page()
            page.goto(report.resolve().as_uri())
            page.wait_for_selector(f"{section} canvas, {section} dl, {section} table")
            if page.locator(FOCUSED).count():
                page.locator(FOCUSED).first.focus()
                page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")
            target = PICTURES / f"{name}.png"
            box = page.locator(section).bounding_box()
            assert box is not None
            clip = {"x": 0.0, "y": box["y"], "width": float(width), "height": box["height"] + MARGIN}
            page.screenshot(path=target, full_page=True, clip=clip)  # type: ignore[arg-type]  # a table of floats
            print(f"{target}: {target.stat().st_size:,} bytes")
            context.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
