"""Write one section of the reference: a class, function, constant or module."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from docs.generate.examples import Examples
from docs.generate.markdown import anchor, code, code_block, escape_prose, prose_cell, table, wrap
from docs.generate.members import bases, class_source, inherited_members, is_record, own_members
from docs.generate.public_names import Entry, exports, parts_with_types
from docs.generate.source import Definition, Function, find_mentions, parse_module, signature, source_text
from docs.generate.subjects import subject_of

ALIASES = "Types in signatures"
"""The heading below which a page explains names of types that no door exports."""


@dataclass(frozen=True)
class Writer:
    """Writer of the sections of one page."""

    page: str
    headings: Mapping[str, str]
    places: Mapping[str, str]
    examples: Examples

    def section(self, entry: Entry) -> str:
        """Write the section of a name."""
        definition = entry.definition
        parts = [f"## {self.headings[definition.qualified]}", self.location(entry)]
        if isinstance(definition.node, ast.Module):
            parts += self.module_sections(definition)
        else:
            parts += self.body(definition, definition.name, level=2)
        return "\n\n".join(part for part in parts if part)

    def location(self, entry: Entry) -> str:
        """Write how to import a name, and the file that defines it."""
        path = entry.definition.path.as_posix()
        doors = " or ".join(f"`from {door} import {entry.name}`" for door in entry.doors)
        return wrap(f"{doors or 'Not exported'}. Defined in [`{path}`](../../{path}).")

    def body(self, definition: Definition, name: str, level: int) -> Iterator[str]:
        """Write source, docstring, members and links of a definition."""
        node = definition.node
        if isinstance(node, ast.ClassDef):
            yield code_block("py", class_source(definition))
        elif isinstance(node, Function):
            yield code_block("py", signature(definition.module, node))
        else:
            yield code_block("py", source_text(definition.module, node))
        yield render_docstring(definition.doc)
        if isinstance(node, ast.ClassDef):
            yield from self.members_tables(definition)
        yield self.link_mentions(definition)
        yield wrap(self.examples.links(name)) or self.link_used_base(definition)
        if isinstance(node, ast.ClassDef):
            yield from self.methods(definition, name, level)

    def members_tables(self, definition: Definition) -> Iterator[str]:
        """Write fields, attributes, properties and inherited members of a class."""
        members = own_members(definition).values()
        for kind in ("field", "class attribute", "property"):
            title = "attribute" if kind == "field" and not is_record(definition) else kind
            rows = [(code(one.name), one.type, one.default, prose_cell(one.doc)) for one in members if one.kind == kind]
            if rows:
                yield table((title, "type", "default", "meaning"), rows)
        for base, names in inherited_members(definition):
            yield wrap(f"Inherited from {self.link(base)}: {', '.join(map(code, names))}.")

    def methods(self, definition: Definition, name: str, level: int) -> Iterator[str]:
        """Write a subsection for every method that a class defines."""
        for member in own_members(definition).values():
            if member.kind == "method":
                yield f"{'#' * (level + 1)} `{name}.{member.name}`"
                yield code_block("py", member.signature)
                yield render_docstring(member.doc)

    def module_sections(self, module: Definition) -> Iterator[str]:
        """Write a table of the functions of a module, then each of them."""
        yield render_docstring(module.doc)
        yield wrap(self.examples.links(module.name))
        offered = list(exports(module))
        for place in dict.fromkeys(one.module for one in offered):
            rows = [
                (f"[`{one.name}`](#{anchor(f'{module.name}.{one.name}')})", summary_cell(one))
                for one in offered
                if one.module == place
            ]
            if place != module.qualified:
                yield render_docstring(ast.get_docstring(parse_module(place)) or "").partition("\n\n")[0]
            yield table(("name", "what it says"), rows)
        for one in offered:
            name = f"{module.name}.{one.name}"
            yield f"### `{name}`"
            yield from self.body(one, name, level=3)

    def link_used_base(self, definition: Definition) -> str:
        """Link the base whose examples apply to a class without own members."""
        known = [base for base in bases(definition) if base.qualified in self.places]
        if known and not own_members(definition):
            return f"Used like {self.link(known[0])}."
        return ""

    def link_mentions(self, definition: Definition) -> str:
        """Link the names of the core that a signature mentions."""
        found = {}
        for node in parts_with_types(definition):
            for one in find_mentions(definition.module, node):
                if one.qualified in self.places and one != definition:
                    found[one.qualified] = self.link(one)
        return wrap(f"See also {', '.join(found.values())}.") if found else ""

    def link(self, definition: Definition) -> str:
        """Link the section of a name."""
        place = self.places.get(definition.qualified, "")
        return f"[`{definition.name}`]({place.removeprefix(f'{self.page}.md')})" if place else f"`{definition.name}`"

    def aliases(self, entries: list[Entry]) -> str:
        """Write a table of the unexported type aliases of a page."""
        rows = {}
        for entry in entries:
            node = entry.definition.node
            assert isinstance(node, ast.Assign)
            value = source_text(entry.definition.module, node.value)
            rows[entry.name, value] = (code(entry.name), code(value), prose_cell(entry.definition.summary))
        return f"## {ALIASES}\n\n{table(('name', 'stands for', 'meaning'), rows.values())}"


def render_docstring(doc: str) -> str:
    """Convert a docstring to Markdown, with doctests as blocks."""
    parts: list[str] = []
    for paragraph in doc.split("\n\n") if doc else ():
        if not paragraph.startswith(">>> "):
            text = escape_prose(paragraph)
            has_lines = re.search(r"^[-*0-9 ]", paragraph, re.M)
            parts.append(text if has_lines else wrap(text))
        elif parts and parts[-1].startswith("```pycon\n"):
            parts[-1] = code_block(
                "pycon", f"{parts[-1].removeprefix('```pycon').removesuffix('```').strip()}\n\n{paragraph}"
            )
        else:
            parts.append(code_block("pycon", paragraph))
    return "\n\n".join(parts)


def summary_cell(definition: Definition) -> str:
    """Write the summary of a name for a table."""
    if definition.summary or not isinstance(definition.node, ast.Assign):
        return prose_cell(definition.summary)
    return code(source_text(definition.module, definition.node.value))


def choose_headings(entries: tuple[Entry, ...]) -> dict[str, str]:
    """Return the heading of every name, unambiguous on its page."""
    anchors = Counter((subject_of(entry.definition), entry.name.lower()) for entry in entries)
    found = {}
    for entry in entries:
        shared = anchors[subject_of(entry.definition), entry.name.lower()] > 1
        kind = " (function)" if shared and isinstance(entry.definition.node, Function) else ""
        found[entry.definition.qualified] = ALIASES if is_minor(entry) else f"`{entry.name}`{kind}"
    return found


def locate_names(entries: tuple[Entry, ...]) -> dict[str, str]:
    """Return page and anchor of every name of the reference."""
    headings, found = choose_headings(entries), {}
    for entry in entries:
        definition, page = entry.definition, f"{subject_of(entry.definition).page}.md"
        found[definition.qualified] = f"{page}#{anchor(headings[definition.qualified])}"
        if isinstance(definition.node, ast.Module):
            for one in exports(definition):
                found[one.qualified] = f"{page}#{anchor(f'{definition.name}.{one.name}')}"
    return found


def is_minor(entry: Entry) -> bool:
    """Return whether a name is an unexported alias of a type."""
    return not entry.doors and isinstance(entry.definition.node, ast.Assign)
