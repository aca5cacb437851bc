"""Figures of several runs, and tables of colours, in a real browser: their numbers, their keys, and how they look."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

import crfl_core
from crfl_core import RunResult
from tests.reports.browsing import Opened, numbers, unreadable

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.xdist_group("browser")  # one process opens the browser and trains what it shows


def runs_of(folder: Path, *names: str) -> list[RunResult]:
    return [crfl_core.load(folder / name) for name in names]


def percent(value: float) -> str:
    return f"{100 * value:.1f}".removesuffix(".0")


def cell(page: Page, figure: str, row: int, column: int) -> str:
    return page.inner_text(f'{figure} td[data-row="{row}"][data-column="{column}"]')


def test_closeness_is_a_plot_with_its_numbers_and_keys(opened: Opened, folder: Path) -> None:
    page = opened(folder / "report.html")
    found = crfl_core.plot(runs_of(folder, "attacked-0", "attacked-1", "clean-0", "clean-1"), "closeness")
    mean = np.asarray(found.axes[0].get_lines()[0].get_ydata(), float)
    rows = numbers(page, "#figure-closeness")
    assert [float(row[1]) for row in rows] == [float(f"{value:.4g}") for value in mean]
    assert [float(row[2]) <= float(row[1]) <= float(row[3]) for row in rows] == [True] * 8
    page.focus("#figure-closeness .plot")
    page.keyboard.press("End")
    assert page.inner_text("#figure-closeness .reading").startswith("round 8: ")
    assert "lines over round" in (page.get_attribute("#figure-closeness .plot", "aria-label") or "")
    assert "attacked rounds" in page.inner_text("#figure-closeness .legend")


def test_accuracy_of_several_runs_is_drawn_round_by_round(opened: Opened, folder: Path) -> None:
    page = opened(folder / "report.html")
    assert page.locator("#figure-rounds canvas").count() == 2
    (median,) = runs_of(folder, "median")
    heads = page.locator("#figure-rounds details.numbers >> nth=0").locator("thead th").all_text_contents()
    shown = [row[heads.index("median")] for row in numbers(page, "#figure-rounds > div:first-of-type")]
    assert shown == [f"{record.accuracy:.3f}" for record in median.ledger.rounds]


def test_cells_of_the_matrix_are_means_over_seeds(opened: Opened, folder: Path) -> None:
    page = opened(folder / "report.html")
    attacked, (median,) = runs_of(folder, "attacked-0", "attacked-1"), runs_of(folder, "median")
    rates = [run.metrics.backdoor.success_rate for run in (*attacked, median) if run.metrics.backdoor is not None]
    assert cell(page, "#figure-matrix", 0, 0) == percent(float(np.mean(rates[:2])))
    assert cell(page, "#figure-matrix", 0, 1) == percent(rates[2])
    assert cell(page, "#figure-matrix", 1, 0) == ""
    page.select_option("#figure-matrix select", label="accuracy")
    accuracies = [run.metrics.accuracy for run in attacked]
    assert cell(page, "#figure-matrix", 0, 0) == percent(float(np.mean(accuracies)))
    page.hover('#figure-matrix td[data-row="0"][data-column="0"]')
    reading = page.inner_text("#figure-matrix .reading")
    assert reading.endswith(f"(mean of 2 runs, from {percent(min(accuracies))}% to {percent(max(accuracies))}%)")


def test_what_is_proved_can_be_shown_in_the_cells(opened: Opened, folder: Path) -> None:
    page = opened(folder / "report.html")
    page.select_option("#figure-matrix select", label="certified, 1 client")
    proved = [run.metrics.proven_accuracy(1) for run in runs_of(folder, "clean-0", "clean-1")]
    shares = [one[0] for one in proved if one is not None]
    assert shares
    assert cell(page, "#figure-matrix", 1, 0) == percent(float(np.mean(shares)))
    rows = numbers(page, "#figure-matrix")
    assert [row[3:] for row in rows if row[:3] == ["none", "median", "certified, 1 client"]] == [["none", "", "", "0"]]


def test_cells_are_walked_by_keys_and_remember_where_one_was(opened: Opened, folder: Path) -> None:
    page = opened(folder / "report.html")
    page.focus("#figure-matrix td")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    here = page.evaluate("[document.activeElement.dataset.row, document.activeElement.dataset.column]")
    assert here == ["1", "1"]
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label == page.inner_text("#figure-matrix .reading")
    assert label.startswith("attack none, defence median")
    page.keyboard.press("Control+Home")
    assert page.evaluate("document.activeElement.dataset.row") == "0"
    assert page.locator('#figure-matrix td[tabindex="0"]').count() == 1
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_flips_are_those_of_the_figure(opened: Opened, run_directory: Path) -> None:
    page = opened()
    (image,) = crfl_core.load(run_directory).plot("flips").axes[0].get_images()
    counts: NDArray[np.float64] = np.ma.filled(np.ma.asarray(image.get_array()), 0)
    for (row, column), count in np.ndenumerate(counts):
        assert cell(page, "#figure-flips", row, column) == (f"{count:.0f}" if count else "")
    page.focus("#figure-flips td")
    assert "test inputs" in page.inner_text("#figure-flips .reading")


def test_a_crowded_grid_has_colours_only_and_says_its_numbers(opened: Opened, run_directory: Path) -> None:
    page = opened()
    counts = crfl_core.load(run_directory).metrics.partition.counts
    assert cell(page, "#figure-partition", 2, 3) == ""
    page.hover('#figure-partition td[data-row="2"][data-column="3"]')
    assert page.inner_text("#figure-partition .reading") == f"class 2, client 3: {counts[2][3]} samples"


def test_nothing_of_a_folder_is_cut_off_at_400_pixels(opened: Opened, folder: Path) -> None:
    page = opened(folder / "report.html", width=400)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.evaluate("document.querySelector('#figure-matrix table').getBoundingClientRect().right") <= 400


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_cells_can_be_read_whatever_their_colour(
    opened: Opened, folder: Path, scheme: Literal["light", "dark"]
) -> None:
    page = opened(folder / "report.html", scheme=scheme)
    for measure in ("attack success", "accuracy", "certified, 1 client"):
        page.select_option("#figure-matrix select", label=measure)
        assert unreadable(page) == []


def test_on_paper_every_measure_has_its_table(opened: Opened, folder: Path, tmp_path: Path) -> None:
    page = opened(folder / "report.html")
    measures = page.locator("#figure-matrix option").count()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#figure-matrix table.grid").count() == measures
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("#figure-matrix table.grid").count() == 1
