"""Public names: those in the two stubs, and types that their signatures mention."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from docs.generate.markdown import ROOT
from docs.generate.members import bases, own_members
from docs.generate.source import PACKAGE, Definition, Function, find_definition, find_mentions, parse_module
from docs.generate.subjects import Subject, place_in, subject_of

STUBS = {"crfl": "crfl/__init__.pyi", "crfl_core.extend": "crfl_core/extend.pyi"}


@dataclass(frozen=True)
class Entry:
    """Name of the reference, with the doors that export it, if any."""

    definition: Definition
    doors: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name that users write."""
        return self.definition.name


def entries_on_page(subject: Subject, entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries of a page in the order of its modules and source."""

    def order(entry: Entry) -> tuple[bool, int, str, int]:
        place = place_in(subject, entry.definition)
        position = subject.modules.index(place) if place else len(subject.modules)
        return not entry.doors, position, entry.definition.module, getattr(entry.definition.node, "lineno", 0)

    return sorted((entry for entry in entries if subject_of(entry.definition) is subject), key=order)


def public_entries() -> tuple[Entry, ...]:
    """Return every name in the stubs, in their order."""
    doors: dict[str, list[str]] = {}
    found: dict[str, Definition] = {}
    for door, stub in STUBS.items():
        for module, name in imported_names(ast.parse((ROOT / stub).read_text(encoding="utf-8"))):
            definition = find_definition(module, name)
            assert definition is not None, f"{stub} lists {name}, which {module} does not have"
            assert found.setdefault(name, definition) == definition, f"{name} means two things"
            doors.setdefault(name, []).append(door)
    return tuple(Entry(found[name], tuple(of)) for name, of in doors.items())


def imported_names(stub: ast.Module) -> Iterator[tuple[str, str]]:
    """Return the names of a stub with their modules."""
    for statement in stub.body:
        if isinstance(statement, ast.ImportFrom):
            module = f"{PACKAGE}.{statement.module or ''}".rstrip(".") if statement.level else statement.module or ""
            yield from ((module, alias.name) for alias in statement.names)


def all_entries() -> tuple[Entry, ...]:
    """Return the public names and the types and bases that they need."""
    found = {entry.definition.qualified: entry for entry in public_entries()}
    modules = [entry.definition for entry in found.values() if isinstance(entry.definition.node, ast.Module)]
    shown = {one.qualified for module in modules for one in exports(module)}
    waiting = list(found.values())
    while waiting:
        for definition in find_neighbours(waiting.pop().definition):
            if definition.qualified not in found.keys() | shown:
                found[definition.qualified] = Entry(definition, ())
                waiting.append(found[definition.qualified])
    return tuple(found.values())


def find_neighbours(definition: Definition) -> Iterator[Definition]:
    """Find the types and bases that a definition mentions."""
    if isinstance(definition.node, ast.Module):
        for one in exports(definition):
            yield from find_neighbours(one)
    else:
        for node in parts_with_types(definition):
            yield from (one for one in find_mentions(definition.module, node) if one.is_class or is_alias(one))
    yield from (base for base in bases(definition) if own_members(base))


def parts_with_types(definition: Definition) -> Sequence[ast.AST]:
    """Return the parts of a definition that mention types."""
    node = definition.node
    if isinstance(node, ast.ClassDef):
        return [part for member in own_members(definition).values() for part in member.annotations]
    if isinstance(node, Function):
        arguments = [part.annotation for part in ast.walk(node.args) if isinstance(part, ast.arg) and part.annotation]
        return [*arguments, *([node.returns] if node.returns is not None else [])]
    return [node.value] if isinstance(node, ast.Assign) else []


def is_alias(definition: Definition) -> bool:
    """Return whether a definition gives a type another name."""
    return isinstance(definition.node, ast.Assign) and definition.name[0].isupper() and not definition.name.isupper()


def exports(module: Definition) -> Iterator[Definition]:
    """Return the public functions and classes of a module."""
    place = module.qualified
    for statement in parse_module(place).body:
        if isinstance(statement, ast.Assign) and [getattr(target, "id", "") for target in statement.targets] == [
            "__all__"
        ]:
            names = ast.literal_eval(statement.value)
            break
    else:
        body = parse_module(place).body
        names = [one.name for one in body if isinstance(one, Function | ast.ClassDef) and not one.name.startswith("_")]
    yield from (found for name in names if (found := find_definition(place, name)) is not None)
