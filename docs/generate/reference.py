"""The reference: an index of both doors, and a page for every subject."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from docs.generate.doors import Entry, all_entries, entries_of
from docs.generate.examples import REFERENCE, Examples
from docs.generate.markdown import fenced, table, wrapped
from docs.generate.sections import Writer, headings_of, is_minor, places_of, summary_of
from docs.generate.source import is_module, tree_of
from docs.generate.subjects import SUBJECTS, Subject

NOTE = "<!-- written by python -m docs.generate: do not edit -->"
INDEX = REFERENCE / "README.md"
INTRODUCTION = (
    "What these pages call *not exported* is a type that public names take or return. An example is a doctest (`>>>`), "
    "or a link to a page whose code the tests run."
)
PART = re.compile(r"<!-- generated: reference -->.*?<!-- end -->", re.DOTALL)


def reference_pages(pages: Mapping[Path, str], examples: Examples) -> dict[Path, str]:
    """Return the index of both doors, which is in git without its tables, and the page of every subject."""
    entries = all_entries()
    headings, places = headings_of(entries), places_of(entries)
    content = {subject: entries_of(subject, entries) for subject in SUBJECTS}
    content = {subject: found for subject, found in content.items() if found}
    tables = index(content, places)
    made = {INDEX: PART.sub(lambda _: tables, pages[INDEX])}
    for subject, found in content.items():
        made[REFERENCE / f"{subject.page}.md"] = page(subject, found, Writer(subject.page, headings, places, examples))
    return made


def index(content: dict[Subject, list[Entry]], places: dict[str, str]) -> str:
    """The names of both doors by subject, each with its summary."""
    parts = [wrapped(INTRODUCTION)]
    for subject, found in content.items():
        rows = [
            (
                f"[`{one.name}`]({places[one.definition.qualified]})",
                ", ".join(f"`{door}`" for door in one.doors),
                summary_of(one.definition),
            )
            for one in found
            if one.doors
        ]
        parts += [f"## [{subject.title}]({subject.page}.md)", table(("name", "from", "what it is"), rows)]
    return "\n\n".join(parts)


def page(subject: Subject, found: list[Entry], writer: Writer) -> str:
    """The page of a subject: what is on it, then a section for each name."""
    public = [entry for entry in found if entry.doors]
    rows = [
        (f"[`{one.name}`]({writer.places[one.definition.qualified].partition('.md')[2]})", summary_of(one.definition))
        for one in public
    ]
    parts = [f"# {subject.title}", NOTE, wrapped(subject.text), *drawings(subject)]
    parts += [table(("name", "what it is"), rows)] if len(rows) > 1 else []
    parts += [writer.section(entry) for entry in found if not is_minor(entry)]
    if minor := [entry for entry in found if is_minor(entry)]:
        parts.append(writer.aliases(minor))
    return "\n\n".join(parts) + "\n"


def drawings(subject: Subject) -> Iterator[str]:
    """The trees that modules of a subject draw in their docstrings."""
    for module in filter(is_module, subject.modules):
        for paragraph in (ast.get_docstring(tree_of(module)) or "").split("\n\n"):
            if "├──" in paragraph:
                yield fenced("text", paragraph)
