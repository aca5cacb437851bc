"""The reference is complete: each public name has a section, a summary and an example."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from types import ModuleType

import pytest

import crfl
from crfl import formulas
from crfl_core import extend
from crfl_core.extend import assumption_checks
from docs.generate import markdown, written_pages
from docs.generate.examples import REFERENCE, Examples
from docs.generate.markdown import anchor
from docs.generate.parts import installed_plugins
from docs.generate.reference import reference_pages
from docs.generate.source import is_module
from docs.generate.subjects import SUBJECTS as SUBJECTS_OF_PAGES

WRITTEN = written_pages()
PAGES = {path.name: text for path, text in reference_pages(WRITTEN, Examples.of(WRITTEN)).items()}
SUBJECTS = {name: text for name, text in PAGES.items() if name != "README.md"}
DOORS = (crfl, extend)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def exported(door: ModuleType) -> list[str]:
    names: list[str] = door.__all__
    return names


NAMES = sorted({name for door in DOORS for name in exported(door)})


def sections(name: str) -> list[str]:
    """Return the sections of a name, on all pages."""
    heading = re.compile(rf"^## `{name}`(?: \(function\))?\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    return [found for page in SUBJECTS.values() for found in heading.findall(page)]


def section(name: str) -> str:
    (only,) = sections(name)
    return only


def shows_use(text: str, name: str) -> bool:
    """Return whether a section shows a doctest or links executed code with the name."""
    if "```pycon\n>>> " in text:
        return True
    if alike := re.search(r"^Used like \[`(\w+)`\]", text, re.MULTILINE):
        return shows_use(section(alike[1]), alike[1])
    used = re.search(r"^Used in (.*?)\.$", text, re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)#]+)", used[1]) if used else []
    return bool(links) and all(uses(REFERENCE / link, name) for link in links)


def uses(page: Path, name: str) -> bool:
    blocks = FENCE.findall(page.read_text(encoding="utf-8"))
    code = "\n".join(text for language, text in blocks if language == "python")
    return re.search(rf"\b{name}\b", code) is not None


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_one_section_that_says_where_it_is_from_and_shows_its_use(name: str) -> None:
    text = section(name)
    for door in DOORS:
        assert (f"`from {door.__name__} import {name}`" in text) == (name in exported(door))
    assert shows_use(text, name), f"{name}: write a doctest, or use it in the code of a page"


@pytest.mark.parametrize("name", NAMES)
def test_the_index_links_a_public_name_with_its_summary(name: str) -> None:
    rows = re.findall(rf"^\| \[`{name}`\]\((\w+\.md)#[\w-]+\) \| ([^|]+) \| (.+) \|$", PAGES["README.md"], re.MULTILINE)
    ((page, doors, summary),) = rows
    assert f"\n## `{name}`" in SUBJECTS[page]
    assert doors == ", ".join(f"`{door.__name__}`" for door in DOORS if name in exported(door))
    assert len(summary.split()) >= 3, f"{name}: write a docstring"


def test_no_two_plugins_share_an_anchor() -> None:
    text = installed_plugins()
    anchors = [anchor(heading) for heading in re.findall(r"^###? (.+)$", text, re.MULTILINE)]
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= set(anchors)


@pytest.mark.parametrize("page", PAGES)
def test_headings_of_a_page_have_anchors_of_their_own(page: str) -> None:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", PAGES[page]), re.MULTILINE)
    anchors = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    assert len(anchors) == len(set(anchors))


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_at_most_120_characters_long_and_rows_have_as_many_cells_as_their_table(page: str) -> None:
    width = 0
    for line in FENCE.sub("", PAGES[page]).splitlines():
        if not line.startswith("|"):
            width = 0
            assert len(line) <= 120 or line.startswith("["), line  # a link cannot be wrapped
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        assert cells == (width := width or cells), line


def test_members_stand_with_their_types_as_the_source_writes_them() -> None:
    threat, columns, result = section("Threat"), section("ClientColumns"), section("RunResult")
    assert "| `scale` | `float`, ≥ 1 | `1.0` |" in threat
    assert "| `clients` | `int \\| tuple[int, ...]` | required |" in threat
    assert "| `attackers` | `int` | " in threat
    assert "### `Threat.excess`\n\n```py\ndef excess(self, realised: Threat) -> tuple[str, ...]\n```" in threat
    assert "| `round` | `NDArray[np.int64]` | required |" in columns
    assert "    def __len__(self) -> int" in columns
    assert "| `metrics` | `Metrics` |" in result
    assert (
        "```py\ndef votes(self, request: VoteRequest, settings: VoteSettings | None = None) -> dict[str, Votes]"
        in result
    )


def test_what_a_class_inherits_is_listed_once_with_a_link_to_where_it_is_described() -> None:
    for name in ("Tracker", "Dataset", "LinearAggregator"):
        assert section(name).count("Inherited from [`Plugin`](plugins.md#plugin): ") == 1
    assert "Inherited from [`Aggregator`](#aggregator): `signed_weights`, `breakdown`" in section("LinearAggregator")
    assert "`full_name`" not in section("Certificate").partition("Inherited from [`Plugin`]")[2].partition(".")[0]


def test_public_modules_show_every_function_with_what_it_says() -> None:
    for module, offered in (
        (formulas, formulas.__all__),
        (assumption_checks, ["check_weights", "check_random_streams"]),
    ):
        name = module.__name__.rpartition(".")[2]
        text = section(name)
        for one in offered:
            assert len(re.findall(rf"^### `{name}\.{one}`$", text, re.MULTILINE)) == 1
            (row,) = re.findall(rf"^\| \[`{one}`\]\(#{name}{one.lower()}\) \| (.+) \|$", text, re.MULTILINE)
            assert row.strip()


def test_the_examples_of_the_generator_itself_are_true() -> None:
    tried = doctest.testmod(markdown)
    assert tried.attempted >= 2
    assert tried.failed == 0


def test_every_module_of_a_subject_exists() -> None:
    assert [module for subject in SUBJECTS_OF_PAGES for module in subject.modules if not is_module(module)] == []
