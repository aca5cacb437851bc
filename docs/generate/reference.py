"""Write the reference: an index of both doors, and a page per subject."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from docs.generate.examples import REFERENCE, Examples
from docs.generate.markdown import code_block, table, wrap
from docs.generate.public_names import Entry, all_entries, entries_on_page
from docs.generate.sections import Writer, choose_headings, is_minor, locate_names, summary_cell
from docs.generate.source import is_module, parse_module
from docs.generate.subjects import SUBJECTS, Subject

NOTE = "<!-- written by python -m docs.generate: do not edit -->"
INDEX = REFERENCE / "README.md"
INTRODUCTION = (
    "What these pages call *not exported* is a type that public names take or return. An example is a doctest (`>>>`), "
    "or a link to a page whose code the tests run."
)
PART = re.compile(r"<!-- generated: reference -->.*?<!-- end -->", re.DOTALL)


def reference_pages(pages: Mapping[Path, str], examples: Examples) -> dict[Path, str]:
    """Write the index and the page of every subject."""
    entries = all_entries()
    headings, places = choose_headings(entries), locate_names(entries)
    content = {subject: entries_on_page(subject, entries) for subject in SUBJECTS}
    content = {subject: found for subject, found in content.items() if found}
    tables = index(content, places)
    made = {INDEX: PART.sub(lambda _: tables, pages[INDEX])}
    for subject, found in content.items():
        made[REFERENCE / f"{subject.page}.md"] = page(subject, found, Writer(subject.page, headings, places, examples))
    return made


def index(content: dict[Subject, list[Entry]], places: dict[str, str]) -> str:
    """Write the names of both doors by subject, each with its summary."""
    parts = [wrap(INTRODUCTION)]
    for subject, found in content.items():
        rows = [
            (
                f"[`{one.name}`]({places[one.definition.qualified]})",
                ", ".join(f"`{door}`" for door in one.doors),
                summary_cell(one.definition),
            )
            for one in found
            if one.doors
        ]
        parts += [f"## [{subject.title}]({subject.page}.md)", table(("name", "from", "what it is"), rows)]
    return "\n\n".join(parts)


def page(subject: Subject, found: list[Entry], writer: Writer) -> str:
    """Write the page of a subject: a table of its names, then their sections."""
    public = [entry for entry in found if entry.doors]
    rows = [
        (f"[`{one.name}`]({writer.places[one.definition.qualified].partition('.md')[2]})", summary_cell(one.definition))
        for one in public
    ]
    parts = [f"# {subject.title}", NOTE, wrap(subject.text), *drawings(subject)]
    parts += [table(("name", "what it is"), rows)] if len(rows) > 1 else []
    parts += [writer.section(entry) for entry in found if not is_minor(entry)]
    if minor := [entry for entry in found if is_minor(entry)]:
        parts.append(writer.aliases(minor))
    return "\n\n".join(parts) + "\n"


def drawings(subject: Subject) -> Iterator[str]:
    """Return the trees drawn in docstrings of the modules of a subject."""
    for module in filter(is_module, subject.modules):
        for paragraph in (ast.get_docstring(parse_module(module)) or "").split("\n\n"):
            if "├──" in paragraph:
                yield code_block("text", paragraph)
