"""What the source says about a name: where it is defined, its signature as written, its docstring.

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
OURS = (PACKAGE, "crfl_reports")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = ast.ClassDef | Function | ast.Assign | ast.AnnAssign | ast.Module
LONGEST_SIGNATURE = 100


@dataclass(frozen=True)
class Definition:
    """A name, the module that defines it, and its syntax tree. `doc` is empty where nothing is written."""

    name: str
    module: str
    node: Node
    doc: str

    @property
    def path(self) -> Path:
        """The file, from the top of the repository."""
        return file_of(self.qualified if isinstance(self.node, ast.Module) else self.module)

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring, on one line."""
        return " ".join(self.doc.partition("\n\n")[0].split())

    @property
    def is_class(self) -> bool:
        """Whether it is a class."""
        return isinstance(self.node, ast.ClassDef)

    @property
    def qualified(self) -> str:
        """Module and name."""
        return f"{self.module}.{self.name}"


def file_of(module: str) -> Path:
    """The file of a module, from the top of the repository; one that does not exist if there is no such module."""
    folder = Path(*module.split("."))
    if not (ROOT / folder.parts[0]).is_dir():
        folder = Path("plugins", folder.parts[0].removeprefix("crfl_")) / folder
    return folder / "__init__.py" if (ROOT / folder).is_dir() else folder.with_suffix(".py")


def is_module(name: str) -> bool:
    """Whether there is a module of this name in the core."""
    return name.split(".")[0] in OURS and (ROOT / file_of(name)).is_file()


@cache
def text_of(module: str) -> str:
    """The source of a module."""
    return (ROOT / file_of(module)).read_text(encoding="utf-8")


@cache
def tree_of(module: str) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(text_of(module))


def written(module: str, node: ast.AST) -> str:
    """A piece of source as written, on one line."""
    line = " ".join((ast.get_source_segment(text_of(module), node) or "").split())
    return re.sub(r",? (?=[\])])", "", re.sub(r"(?<=[\[(]) ", "", line))


@cache
def find(module: str, name: str) -> Definition | None:
    """The definition behind a name that a module of the core defines or imports; None if it is not the core's."""
    for statement, doc in documented(tree_of(module).body):
        if isinstance(statement, ast.ClassDef | Function) and statement.name == name:
            return Definition(name, module, statement, ast.get_docstring(statement) or "")
        if isinstance(statement, ast.Assign | ast.AnnAssign) and name in targets(statement):
            return Definition(name, module, statement, doc)
    for imported in imports(tree_of(module).body):
        for alias in imported.names:
            source = imported.module or ""
            foreign = source.split(".")[0] not in OURS or source == module
            if (alias.asname or alias.name) == name and not foreign:
                return find(source, alias.name)
    if is_module(f"{module}.{name}"):
        node = tree_of(f"{module}.{name}")
        return Definition(name, module, node, ast.get_docstring(node) or "")
    return None


def documented(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """The statements of a body, each with the string that stands below it."""
    for statement, below in zip(body, [*body[1:], None], strict=True):
        text = below.value if isinstance(below, ast.Expr) else None
        yield statement, cleandoc(string(text))


def string(node: ast.AST | None) -> str:
    """The text of a string literal; empty for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def targets(statement: ast.Assign | ast.AnnAssign) -> list[str]:
    """The names that an assignment gives values to."""
    nodes = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [node.id for node in nodes if isinstance(node, ast.Name)]


def imports(body: Sequence[ast.stmt]) -> Iterator[ast.ImportFrom]:
    """Every `from ... import` of a module, also those for type checkers only."""
    for statement in body:
        if isinstance(statement, ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.If):
            yield from imports(statement.body)


def mentioned(module: str, node: ast.AST) -> Iterator[Definition]:
    """The definitions of the core that an annotation mentions; what it calls is machinery, not a type."""
    if isinstance(node, ast.Call):
        return
    name = node.id if isinstance(node, ast.Name) else node.value if isinstance(node, ast.Constant) else None
    if isinstance(name, str) and name.isidentifier() and (found := find(module, name)) is not None:
        yield found
    for part in ast.iter_child_nodes(node):
        yield from mentioned(module, part)


def signature(module: str, function: Function, name: str | None = None) -> str:
    """`def` with types and defaults as written; a long one has an argument per line."""
    start = f"{'async ' if isinstance(function, ast.AsyncFunctionDef) else ''}def {name or function.name}("
    end = f") -> {written(module, function.returns)}" if function.returns is not None else ")"
    arguments = list(parameters(module, function.args))
    line = f"{start}{', '.join(arguments)}{end}"
    if len(line) <= LONGEST_SIGNATURE:
        return line
    return "\n".join([start, *(f"    {argument}," for argument in arguments), end])


def parameters(module: str, arguments: ast.arguments) -> Iterator[str]:
    """Every parameter as written, with the marks between kinds of parameters."""
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
    """One parameter as written."""
    annotated = argument.annotation is not None
    value = "" if default is None else f"{' = ' if annotated else '='}{written(module, default)}"
    return (
        f"{argument.arg}: {written(module, argument.annotation)}{value}"
        if argument.annotation
        else argument.arg + value
    )
