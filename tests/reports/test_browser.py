"""Reports in a real browser: no errors, no requests, numbers of the run, keys, contrast, narrow screens, paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from crfl_reports.pages.words import count_checks

from crfl_core.reporting.glossary import GLOSSARY
from tests.reports.browsing import Opened, numbers, unreadable

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.xdist_group("browser")  # one process opens the browser and trains what it shows


def answer(page: Page) -> str:
    return page.inner_text("#figure-explorer .answer")


def curve(run_directory: Path, certificate: str, level: str, test_set: str) -> dict[str, Any]:
    metrics = json.loads((run_directory / "metrics.json").read_text())
    found: dict[str, Any] = next(
        one
        for one in metrics["curves"]
        if (one["certificate"], one["level"], one["test_set"]) == (certificate, level, test_set)
    )
    return found


def test_shown_numbers_are_those_of_the_metrics(opened: Opened, run_directory: Path) -> None:
    page = opened()
    metrics = json.loads((run_directory / "metrics.json").read_text())
    shown = page.inner_text('[data-metric="accuracy"]')
    assert shown == f"{100 * metrics['accuracy']:.1f}".removesuffix(".0") + "%"
    expected = curve(run_directory, "pathwise-linear", "client", "clean")
    rows = numbers(page, "#figure-curves")
    values = {row[0]: row[1] for row in rows}
    for at, value in zip(expected["radii"], expected["certified_accuracy"], strict=True):
        assert values[f"{at:g}"] == f"{value:.3f}"


def test_the_explorer_starts_at_the_threat_of_the_run(opened: Opened, run_directory: Path) -> None:
    page = opened()
    expected = curve(run_directory, "pathwise-linear", "client", "clean")
    value = float(page.get_attribute("#figure-explorer .answer strong", "data-value") or "nan")
    assert value == expected["certified_accuracy"][expected["radii"].index(1.0)]


def test_sliders_change_the_curve_by_keys_alone(opened: Opened) -> None:
    page = opened()
    before, drawn = answer(page), numbers(page, "#figure-explorer")
    page.focus('[data-axis="rounds"]')
    page.keyboard.press("End")
    assert page.get_attribute('[data-axis="rounds"]', "aria-valuetext") == "every round"
    assert numbers(page, "#figure-explorer") != drawn
    page.focus('[data-axis="clients"]')
    page.keyboard.press("ArrowRight")
    assert "2 malicious clients" in answer(page)
    page.click("text=As the run assumed")
    assert answer(page) == before


def test_what_stored_votes_cannot_answer_is_greyed_with_the_reason(opened: Opened) -> None:
    page = opened()
    page.select_option("#figure-explorer .controls select >> nth=0", label="tail")
    assert page.is_hidden("#figure-explorer .refusal")
    page.focus('[data-axis="rounds"]')
    page.keyboard.press("End")
    assert "model before noise was kept" in page.inner_text("#figure-explorer .refusal")
    assert page.locator("#figure-explorer .greyed").count() == 1
    assert answer(page) == ""


def test_every_number_of_the_explorer_says_what_it_rests_on(opened: Opened) -> None:
    page = opened()
    told = page.inner_text("#figure-explorer .rests")
    for word in ("pathwise-linear: Pathwise statement", "holds for this run", "compared with all clients honest"):
        assert word in told
    assert "Assumptions: " in told


def test_the_explorer_counts_assumptions_as_the_audit_does(opened: Opened, run_directory: Path) -> None:
    import crfl_core

    page = opened()
    for found in crfl_core.load(run_directory).audits:
        counted = count_checks(found.checks)
        page.select_option("#figure-explorer .controls select >> nth=0", label=found.certificate)
        assert f"Assumptions: {counted}" in page.inner_text("#figure-explorer .rests")
        assert f"Assumptions: {counted}." in page.inner_text("#audit")


def test_sliders_without_effect_are_absent_and_named(opened: Opened) -> None:
    page = opened()
    assert page.is_hidden('[data-axis="scale"]')
    assert page.is_visible('[data-axis="rounds"]')
    told = page.inner_text("#figure-explorer .idle")
    assert told.startswith(
        "pathwise-linear gives the same numbers here for every value of: factor on malicious updates"
    )


def test_terms_explain_themselves_and_lead_to_the_glossary(opened: Opened) -> None:
    page = opened()
    page.hover("#summary .term >> text=Pathwise")
    assert page.inner_text("#tip") == GLOSSARY["pathwise"]
    page.keyboard.press("Escape")
    assert page.is_hidden("#tip")
    page.focus("#audit .term >> nth=0")
    assert page.is_visible("#tip")
    dead = page.evaluate(
        "() => [...document.querySelectorAll('.term')].filter(one => !document.querySelector(one.getAttribute('href'))"
        " || !(one.dataset.term in JSON.parse(document.getElementById('data').textContent).words.glossary)).length"
    )
    assert dead == 0


@pytest.mark.parametrize("width", [390, 1280])
def test_the_table_of_a_folder_fits_and_is_sorted_by_numbers(opened: Opened, folder: Path, width: int) -> None:
    page = opened(folder / "report.html", width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cells = "[...document.querySelectorAll('.sortable td div')]"
    assert page.evaluate(f"{cells}.filter(one => one.scrollWidth > one.clientWidth + 1).length") == 0
    before = accuracies(page)
    if width < 500:
        page.select_option(".narrow select", label="accuracy")
    else:
        page.click(".sortable th button >> text=accuracy")
        assert page.get_attribute(".sortable th:has-text('accuracy')", "aria-sort") == "descending"
    assert accuracies(page) == sorted(before, reverse=True)


def accuracies(page: Page) -> list[float]:
    found: list[float] = page.eval_on_selector_all(
        '.sortable td[data-label="accuracy"]', "cells => cells.map(cell => Number(cell.dataset.number))"
    )
    return found


def test_every_run_of_a_folder_is_a_link_to_its_report(opened: Opened, folder: Path) -> None:
    page = opened(folder / "report.html")
    addresses = page.eval_on_selector_all(".sortable a[href$='report.html']", "links => links.map(link => link.href)")
    assert {Path(address.removeprefix("file://")) for address in addresses} == {
        path.resolve() for path in folder.glob("*/report.html")
    }
    assert len(addresses) == 6


def test_samples_are_sorted_and_filtered(opened: Opened) -> None:
    page = opened()
    everything = page.inner_text("#sample-table [role=status]")
    page.click('[data-sort="radius"]')
    assert page.get_attribute("#sample-table th:has([data-sort=radius])", "aria-sort") == "descending"
    cells = "#sample-table tbody tr td:last-child"
    radii = page.eval_on_selector_all(cells, "cells => cells.map(cell => Number(cell.textContent))")
    assert radii == sorted(radii, reverse=True)
    page.select_option("#sample-table .controls >> label:text-is('show') + select", "wrong")
    assert page.inner_text("#sample-table [role=status]") != everything
    assert page.locator("#sample-table tbody tr:not(.wrong)").count() == 0
    assert page.locator("#sample-table .picture").count() > 0


def test_points_of_a_chart_are_read_by_keys(opened: Opened) -> None:
    page = opened()
    page.focus("#figure-rounds .plot")
    page.keyboard.press("Home")
    assert page.inner_text("#figure-rounds .reading").startswith("round 1: accuracy")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#figure-rounds .reading").startswith("round 2:")


def test_nothing_is_cut_off_at_400_pixels(opened: Opened) -> None:
    page = opened(width=400)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(opened: Opened, scheme: Literal["light", "dark"]) -> None:
    page = opened(scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert unreadable(page) == []


def test_colours_can_be_chosen(opened: Opened) -> None:
    page = opened()
    colours = set()
    for _ in range(3):
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.click("#theme")
    assert len(colours) == 2
    assert page.inner_text("#theme") == "Colours: automatic"


def test_controls_have_names(opened: Opened) -> None:
    page = opened()
    nameless = page.evaluate(
        "() => [...document.querySelectorAll('select, input')].filter(one => !one.labels.length).length"
        " + [...document.querySelectorAll('button')].filter(one => !one.textContent.trim()).length"
    )
    assert nameless == 0
    assert page.locator("canvas").count() == page.locator("[role=img] canvas").count() > 0


def test_a_report_can_be_printed(opened: Opened, tmp_path: Path) -> None:
    page = opened(scheme="dark")
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    page.emulate_media(media="print", color_scheme="light")
    assert page.is_hidden("nav")


def test_a_folder_of_runs_is_drawn(opened: Opened, own_run: Path) -> None:
    import crfl_reports.pages

    folder = crfl_reports.pages.write_report(own_run.parent, explore=0)
    page = opened(folder)
    expected = curve(own_run, "paper", "feature", "clean")
    values = {row[0]: row[1] for row in numbers(page, "#figure-folder")}
    assert values["0"] == f"{expected['certified_accuracy'][0]:.3f}"


def test_hostile_names_run_nothing(opened: Opened, tmp_path: Path) -> None:
    import crfl_reports.pages

    import crfl_core
    from tests.reports.test_report import EVIL, Hostile

    config = {"dataset": "hostile", "partition": {"type": "iid", "clients": 3}, "rounds": 2, "votes": {"models": 16}}
    run = crfl_core.run(config, out=tmp_path / "run", plugins={"hostile": Hostile})
    page = opened(crfl_reports.pages.write_report(run.path))
    assert page.locator("img").count() == 0
    assert EVIL in page.inner_text("#sample-table tbody")


def test_tables_break_no_word_on_a_phone(opened: Opened) -> None:
    """Every word of a table fits into its column; digests are code, and may break."""
    page = opened(width=390)
    widths: list[list[object]] = page.evaluate(
        """() => [...document.querySelectorAll("#audit td, #environment td")].filter((cell) => cell.checkVisibility())
        .filter((cell) => !cell.querySelector("code")).map((cell) => {
          const longest = cell.textContent.split(/\\s+/).reduce((a, b) => (a.length > b.length ? a : b), "");
          const probe = document.createElement("span");
          probe.textContent = longest; probe.style.whiteSpace = "nowrap"; probe.style.position = "absolute";
          cell.append(probe);
          const needed = probe.getBoundingClientRect().width;
          probe.remove();
          return [longest, needed, cell.getBoundingClientRect().width];
        })"""
    )
    assert len(widths) > 5
    assert [word for word, needed, width in widths if needed > width + 1] == []  # type: ignore[operator]
