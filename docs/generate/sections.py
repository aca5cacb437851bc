"""One section of the reference: a class, function, constant or module, with its members."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from docs.generate.doors import Entry, exports, parts_with_types
from docs.generate.examples import Examples
from docs.generate.markdown import anchor, code, fenced, prose, prose_cell, table, wrapped
from docs.generate.members import bases, class_source, inherited, is_record, own_members
from docs.generate.source import Definition, Function, mentioned, signature, tree_of, written
from docs.generate.subjects import subject_of

ALIASES = "Types in signatures"
"""The heading below which a page explains names of types that nobody can import from a door."""


@dataclass(frozen=True)
class Writer:
    """Writes sections of a page; knows where every name of the reference stands, and which examples there are."""

    page: str
    headings: Mapping[str, str]
    places: Mapping[str, str]
    examples: Examples

    def section(self, entry: Entry) -> str:
        """Everything about one name."""
        definition = entry.definition
        parts = [f"## {self.headings[definition.qualified]}", self.location(entry)]
        if isinstance(definition.node, ast.Module):
            parts += self.of_module(definition)
        else:
            parts += self.body(definition, definition.name, level=2)
        return "\n\n".join(part for part in parts if part)

    def location(self, entry: Entry) -> str:
        """How to import a name, and the file that defines it."""
        path = entry.definition.path.as_posix()
        doors = " or ".join(f"`from {door} import {entry.name}`" for door in entry.doors)
        return wrapped(f"{doors or 'Not exported'}. Defined in [`{path}`](../../{path}).")

    def body(self, definition: Definition, name: str, level: int) -> Iterator[str]:
        """Source, docstring, members, and where to read on; `name` is what people write."""
        node = definition.node
        if isinstance(node, ast.ClassDef):
            yield fenced("py", class_source(definition))
        elif isinstance(node, Function):
            yield fenced("py", signature(definition.module, node))
        else:
            yield fenced("py", written(definition.module, node))
        yield described(definition.doc)
        if isinstance(node, ast.ClassDef):
            yield from self.members_tables(definition)
        yield self.mentions_of(definition)
        yield wrapped(self.examples.links(name)) or self.used_alike(definition)
        if isinstance(node, ast.ClassDef):
            yield from self.methods(definition, name, level)

    def members_tables(self, definition: Definition) -> Iterator[str]:
        """The fields, class attributes and properties of a class, and what it inherits."""
        members = own_members(definition).values()
        for kind in ("field", "class attribute", "property"):
            title = "attribute" if kind == "field" and not is_record(definition) else kind
            rows = [(code(one.name), one.type, one.default, prose_cell(one.doc)) for one in members if one.kind == kind]
            if rows:
                yield table((title, "type", "default", "meaning"), rows)
        for base, names in inherited(definition):
            yield wrapped(f"Inherited from {self.link(base)}: {', '.join(map(code, names))}.")

    def methods(self, definition: Definition, name: str, level: int) -> Iterator[str]:
        """A subsection for every method that the class itself defines."""
        for member in own_members(definition).values():
            if member.kind == "method":
                yield f"{'#' * (level + 1)} `{name}.{member.name}`"
                yield fenced("py", member.signature)
                yield described(member.doc)

    def of_module(self, module: Definition) -> Iterator[str]:
        """A module that is public as a whole: a table of all that it offers, then each of them."""
        yield described(module.doc)
        yield wrapped(self.examples.links(module.name))
        offered = list(exports(module))
        for place in dict.fromkeys(one.module for one in offered):
            rows = [
                (f"[`{one.name}`](#{anchor(f'{module.name}.{one.name}')})", summary_of(one))
                for one in offered
                if one.module == place
            ]
            if place != module.qualified:
                yield described(ast.get_docstring(tree_of(place)) or "").partition("\n\n")[0]
            yield table(("name", "what it says"), rows)
        for one in offered:
            name = f"{module.name}.{one.name}"
            yield f"### `{name}`"
            yield from self.body(one, name, level=3)

    def used_alike(self, definition: Definition) -> str:
        """The base to look at for an example of a class that adds nothing to it; empty for others."""
        known = [base for base in bases(definition) if base.qualified in self.places]
        if known and not own_members(definition):
            return f"Used like {self.link(known[0])}."
        return ""

    def mentions_of(self, definition: Definition) -> str:
        """Links to the other names of the core that signatures of a definition mention."""
        found = {}
        for node in parts_with_types(definition):
            for one in mentioned(definition.module, node):
                if one.qualified in self.places and one != definition:
                    found[one.qualified] = self.link(one)
        return wrapped(f"See also {', '.join(found.values())}.") if found else ""

    def link(self, definition: Definition) -> str:
        """A name as a link to its section."""
        place = self.places.get(definition.qualified, "")
        return f"[`{definition.name}`]({place.removeprefix(f'{self.page}.md')})" if place else f"`{definition.name}`"

    def aliases(self, entries: list[Entry]) -> str:
        """The names of types that a page's signatures use and no door exports, in one table."""
        rows = {}
        for entry in entries:
            node = entry.definition.node
            assert isinstance(node, ast.Assign)
            value = written(entry.definition.module, node.value)
            rows[entry.name, value] = (code(entry.name), code(value), prose_cell(entry.definition.summary))
        return f"## {ALIASES}\n\n{table(('name', 'stands for', 'meaning'), rows.values())}"


def described(doc: str) -> str:
    """A docstring as Markdown, its doctests as blocks."""
    parts: list[str] = []
    for paragraph in doc.split("\n\n") if doc else ():
        if not paragraph.startswith(">>> "):
            parts.append(prose(paragraph) if re.search(r"^[-*0-9 ]", paragraph, re.M) else wrapped(prose(paragraph)))
        elif parts and parts[-1].startswith("```pycon\n"):
            parts[-1] = fenced(
                "pycon", f"{parts[-1].removeprefix('```pycon').removesuffix('```').strip()}\n\n{paragraph}"
            )
        else:
            parts.append(fenced("pycon", paragraph))
    return "\n\n".join(parts)


def summary_of(definition: Definition) -> str:
    """What a name is, for a cell of a table: the docstring's first paragraph, else what it stands for."""
    if definition.summary or not isinstance(definition.node, ast.Assign):
        return prose_cell(definition.summary)
    return code(written(definition.module, definition.node.value))


def headings_of(entries: tuple[Entry, ...]) -> dict[str, str]:
    """The heading of every name; a function whose name differs from another's on its page by capitals alone says so."""
    anchors = Counter((subject_of(entry.definition), entry.name.lower()) for entry in entries)
    found = {}
    for entry in entries:
        shared = anchors[subject_of(entry.definition), entry.name.lower()] > 1
        kind = " (function)" if shared and isinstance(entry.definition.node, Function) else ""
        found[entry.definition.qualified] = ALIASES if is_minor(entry) else f"`{entry.name}`{kind}"
    return found


def places_of(entries: tuple[Entry, ...]) -> dict[str, str]:
    """Page and anchor of every name of the reference, by module and name."""
    headings, found = headings_of(entries), {}
    for entry in entries:
        definition, page = entry.definition, f"{subject_of(entry.definition).page}.md"
        found[definition.qualified] = f"{page}#{anchor(headings[definition.qualified])}"
        if isinstance(definition.node, ast.Module):
            for one in exports(definition):
                found[one.qualified] = f"{page}#{anchor(f'{definition.name}.{one.name}')}"
    return found


def is_minor(entry: Entry) -> bool:
    """Whether a name is only another name of a type, which no door exports."""
    return not entry.doors and isinstance(entry.definition.node, ast.Assign)
