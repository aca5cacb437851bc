"""Read definitions from source: place, signature as written, docstring.

Nothing is imported: modules are read as text, so that types are shown as their authors wrote them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import cleandoc
from pathlib import Path

from docs.generate.markdown import ROOT

PACKAGE = "crfl_core"
OURS = (PACKAGE, "crfl_reports", "crfl_experiments")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = ast.ClassDef | Function | ast.Assign | ast.AnnAssign | ast.Module
LONGEST_SIGNATURE = 100


@dataclass(frozen=True)
class Definition:
    """Name with its module and syntax tree; `doc` is empty if there is no docstring."""

    name: str
    module: str
    node: Node
    doc: str

    @property
    def path(self) -> Path:
        """Return the file, from the top of the repository."""
        return module_file(self.qualified if isinstance(self.node, ast.Module) else self.module)

    @property
    def summary(self) -> str:
        """Return the first paragraph of the docstring, on one line."""
        return " ".join(self.doc.partition("\n\n")[0].split())

    @property
    def is_class(self) -> bool:
        """Return whether the definition is a class."""
        return isinstance(self.node, ast.ClassDef)

    @property
    def qualified(self) -> str:
        """Return module and name."""
        return f"{self.module}.{self.name}"


def module_file(module: str) -> Path:
    """Return the file of a module, from the top of the repository."""
    folder = Path(*module.split("."))
    if not (ROOT / folder.parts[0]).is_dir():
        folder = Path("plugins", folder.parts[0].removeprefix("crfl_")) / folder
    return folder / "__init__.py" if (ROOT / folder).is_dir() else folder.with_suffix(".py")


def is_module(name: str) -> bool:
    """Return whether a module of this name exists in the repository."""
    return name.split(".")[0] in OURS and (ROOT / module_file(name)).is_file()


@cache
def read_module(module: str) -> str:
    """Read the source of a module."""
    return (ROOT / module_file(module)).read_text(encoding="utf-8")


@cache
def parse_module(module: str) -> ast.Module:
    """Parse a module."""
    return ast.parse(read_module(module))


def source_text(module: str, node: ast.AST) -> str:
    """Return a piece of source as written, on one line."""
    line = " ".join((ast.get_source_segment(read_module(module), node) or "").split())
    return re.sub(r",? (?=[\])])", "", re.sub(r"(?<=[\[(]) ", "", line))


@cache
def find_definition(module: str, name: str) -> Definition | None:
    """Find the definition of a name that a module defines or imports, or None."""
    for statement, doc in pair_with_docstrings(parse_module(module).body):
        if isinstance(statement, ast.ClassDef | Function) and statement.name == name:
            return Definition(name, module, statement, ast.get_docstring(statement) or "")
        if isinstance(statement, ast.Assign | ast.AnnAssign) and name in target_names(statement):
            return Definition(name, module, statement, doc)
    for imported in import_statements(parse_module(module).body):
        for alias in imported.names:
            source = imported.module or ""
            foreign = source.split(".")[0] not in OURS or source == module
            if (alias.asname or alias.name) == name and not foreign:
                return find_definition(source, alias.name)
    if is_module(f"{module}.{name}"):
        node = parse_module(f"{module}.{name}")
        return Definition(name, module, node, ast.get_docstring(node) or "")
    return None


def pair_with_docstrings(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Return the statements of a body, each with the string below it."""
    for statement, below in zip(body, [*body[1:], None], strict=True):
        text = below.value if isinstance(below, ast.Expr) else None
        yield statement, cleandoc(string_value(text))


def string_value(node: ast.AST | None) -> str:
    """Return the text of a string literal; empty for other nodes."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def target_names(statement: ast.Assign | ast.AnnAssign) -> list[str]:
    """Return the names that an assignment defines."""
    nodes = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [node.id for node in nodes if isinstance(node, ast.Name)]


def import_statements(body: Sequence[ast.stmt]) -> Iterator[ast.ImportFrom]:
    """Return every `from ... import` of a module, also for type checkers."""
    for statement in body:
        if isinstance(statement, ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.If):
            yield from import_statements(statement.body)


def find_mentions(module: str, node: ast.AST) -> Iterator[Definition]:
    """Find the definitions of the core that an annotation mentions."""
    if isinstance(node, ast.Call):
        return
    name = node.id if isinstance(node, ast.Name) else node.value if isinstance(node, ast.Constant) else None
    if isinstance(name, str) and name.isidentifier() and (found := find_definition(module, name)) is not None:
        yield found
    for part in ast.iter_child_nodes(node):
        yield from find_mentions(module, part)


def signature(module: str, function: Function, name: str | None = None) -> str:
    """Write a `def` line with types and defaults as in the source."""
    start = f"{'async ' if isinstance(function, ast.AsyncFunctionDef) else ''}def {name or function.name}("
    end = f") -> {source_text(module, function.returns)}" if function.returns is not None else ")"
    arguments = list(parameters(module, function.args))
    line = f"{start}{', '.join(arguments)}{end}"
    if len(line) <= LONGEST_SIGNATURE:
        return line
    return "\n".join([start, *(f"    {argument}," for argument in arguments), end])


def parameters(module: str, arguments: ast.arguments) -> Iterator[str]:
    """Return every parameter as written, with `/` and `*`."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for number, (argument, default) in enumerate(zip(positional, defaults, strict=True), 1):
        yield parameter(module, argument, default)
        if number == len(arguments.posonlyargs):
            yield "/"
    if arguments.vararg is not None:
        yield f"*{parameter(module, arguments.vararg, None)}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield parameter(module, argument, default)
    if arguments.kwarg is not None:
        yield f"**{parameter(module, arguments.kwarg, None)}"


def parameter(module: str, argument: ast.arg, default: ast.expr | None) -> str:
    """Return one parameter as written."""
    annotated = argument.annotation is not None
    value = "" if default is None else f"{' = ' if annotated else '='}{source_text(module, default)}"
    return (
        f"{argument.arg}: {source_text(module, argument.annotation)}{value}"
        if argument.annotation
        else argument.arg + value
    )
