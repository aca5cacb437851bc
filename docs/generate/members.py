"""Public members of a class: fields, properties and methods, own and inherited."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from docs.generate.markdown import cell, code
from docs.generate.source import (
    Definition,
    Function,
    find_definition,
    pair_with_docstrings,
    signature,
    source_text,
    string_value,
    target_names,
)

LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
MACHINERY = {"model_validator", "field_validator", "field_serializer", "model_serializer"}
CONSTRUCTION = ("__init__", "__post_init__")


@dataclass(frozen=True)
class Member:
    """Field, class attribute, property or method of a class.

    `type` and `default` are Markdown, for the cells of a table; `signature` is the source of a method. `annotations`
    are the parts of the syntax tree in which other names may be mentioned.
    """

    name: str
    kind: Literal["field", "class attribute", "property", "method", "special"]
    doc: str
    type: str = ""
    default: str = ""
    signature: str = ""
    annotations: tuple[ast.AST, ...] = ()


@cache
def own_members(definition: Definition) -> dict[str, Member]:
    """Return the members that a class itself defines, by name."""
    assert isinstance(definition.node, ast.ClassDef)
    found: dict[str, Member] = {}
    for statement, doc in pair_with_docstrings(definition.node.body):
        if isinstance(statement, ast.AnnAssign):
            found |= {
                name: member_from_annotation(definition, name, statement, doc) for name in target_names(statement)
            }
        elif isinstance(statement, Function) and MACHINERY.isdisjoint(decorator_names(statement)):
            found[statement.name] = member_from_function(definition, statement)
            if statement.name == "__init__":
                found |= {
                    one.name: one for one in members_from_constructor(definition, statement) if one.name not in found
                }
    return {name: member for name, member in found.items() if is_public(member)}


def is_public(member: Member) -> bool:
    """Return whether users may use a member."""
    return not member.name.startswith("_") or (member.kind == "special" and member.name not in CONSTRUCTION)


def decorator_names(statement: Function | ast.ClassDef) -> list[str]:
    """Return the last words of decorators, such as `cached_property`."""
    nodes = [one.func if isinstance(one, ast.Call) else one for one in statement.decorator_list]
    return [
        one.attr if isinstance(one, ast.Attribute) else one.id
        for one in nodes
        if isinstance(one, ast.Name | ast.Attribute)
    ]


def member_from_annotation(definition: Definition, name: str, statement: ast.AnnAssign, doc: str) -> Member:
    """Describe a field or class attribute."""
    kind = type_text(definition.module, statement.annotation)
    if kind == "ClassVar" or kind.startswith("ClassVar["):
        inner = kind.removeprefix("ClassVar").removeprefix("[").removesuffix("]")
        value = "" if statement.value is None else code(source_text(definition.module, statement.value))
        return Member(name, "class attribute", doc, code(inner) if inner else "", value, "", (statement.annotation,))
    options = field_options(statement.value)
    limits = [f"{LIMITS[key]} {source_text(definition.module, node)}" for key, node in options.items() if key in LIMITS]
    return Member(
        name,
        "field",
        string_value(options.get("description")) or doc,
        ", ".join([code(kind), *([cell(" and ".join(limits))] if limits else [])]),
        default_text(definition, statement.value, options),
        "",
        (statement.annotation,),
    )


def type_text(module: str, annotation: ast.expr) -> str:
    """Return a type as written, without validators."""
    source = source_text(module, annotation)
    plain = ast.unparse(WithoutValidators().visit(ast.parse(source, mode="eval")))
    return source if "Annotated[" not in source else plain.replace("'", '"')


class WithoutValidators(ast.NodeTransformer):
    """Transformer of `Annotated[T, ...]` to T, unless a `Field(...)` restricts its values."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:  # noqa: D102
        self.generic_visit(node)
        if not (
            isinstance(node.value, ast.Name) and node.value.id == "Annotated" and isinstance(node.slice, ast.Tuple)
        ):
            return node
        first, *rest = node.slice.elts
        return node if any(getattr(getattr(one, "func", None), "id", "") == "Field" for one in rest) else first


def field_options(value: ast.expr | None) -> dict[str, ast.expr]:
    """Return the arguments of `Field(...)` or `field(...)`, by name."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("Field", "field")):
        return {} if value is None else {"default": value}
    first = {"default": value.args[0]} if value.args else {}
    return first | {keyword.arg: keyword.value for keyword in value.keywords if keyword.arg is not None}


def default_text(definition: Definition, value: ast.expr | None, options: dict[str, ast.expr]) -> str:
    """Return a default as written, or `required`."""
    if (default := options.get("default")) is not None and source_text(definition.module, default) != "...":
        return code(source_text(definition.module, default))
    if isinstance(factory := options.get("default_factory"), ast.Lambda):
        return code(source_text(definition.module, factory.body))
    if factory is not None:
        return code(f"{source_text(definition.module, factory)}()")
    return "required" if value is not None or is_record(definition) else ""


def is_record(definition: Definition) -> bool:
    """Return whether the constructor of a class takes its fields."""
    assert isinstance(definition.node, ast.ClassDef)
    nodes = [(one.module, one.node) for one in (definition, *bases(definition))]
    names = {
        source_text(module, base) for module, node in nodes if isinstance(node, ast.ClassDef) for base in node.bases
    }
    return "dataclass" in decorator_names(definition.node) or not names.isdisjoint({"BaseModel", "NamedTuple"})


def member_from_function(definition: Definition, statement: Function) -> Member:
    """Describe a method or property."""
    doc, names = ast.get_docstring(statement) or "", decorator_names(statement)
    annotations = tuple(node for node in ast.walk(statement.args) if isinstance(node, ast.arg) and node.annotation)
    mentions = tuple(node.annotation for node in annotations if node.annotation is not None)
    if statement.returns is not None:
        mentions = (*mentions, statement.returns)
    if not {"property", "cached_property"}.isdisjoint(names):
        returns = "" if statement.returns is None else code(source_text(definition.module, statement.returns))
        return Member(statement.name, "property", doc, returns, annotations=mentions)
    shown = [f"@{name}" for name in names if name in ("abstractmethod", "classmethod", "staticmethod", "final")]
    text = "\n".join([*shown, signature(definition.module, statement)])
    special = statement.name.startswith("__") and statement.name.endswith("__")
    return Member(statement.name, "special" if special else "method", doc, signature=text, annotations=mentions)


def members_from_constructor(definition: Definition, constructor: Function) -> Iterator[Member]:
    """Describe the attributes that a constructor sets from parameters or new objects."""
    known = {argument.arg: argument.annotation for argument in [*constructor.args.args, *constructor.args.kwonlyargs]}
    for statement in constructor.body:
        if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute)):
            continue
        value = statement.value.values[-1] if isinstance(statement.value, ast.BoolOp) else statement.value
        kind = (
            known.get(value.id) if isinstance(value, ast.Name) else value.func if isinstance(value, ast.Call) else None
        )
        if kind is not None and not any(statement.targets[0].attr in own_members(base) for base in bases(definition)):
            yield Member(statement.targets[0].attr, "field", "", code(source_text(definition.module, kind)))


@cache
def bases(definition: Definition) -> tuple[Definition, ...]:
    """Return the core's base classes of a class, nearest first."""
    if not isinstance(definition.node, ast.ClassDef):
        return ()
    found: dict[tuple[str, str], Definition] = {}
    for node in definition.node.bases:
        base = find_definition(definition.module, node.id) if isinstance(node, ast.Name) else None
        if base is not None and base.is_class:
            for one in (base, *bases(base)):
                found.setdefault((one.module, one.name), one)
    return tuple(found.values())


def inherited_members(definition: Definition) -> Iterator[tuple[Definition, list[str]]]:
    """Return the bases that contribute members, with the names."""
    known = set(own_members(definition))
    for base in bases(definition):
        names = [name for name, member in own_members(base).items() if name not in known and member.kind != "special"]
        known.update(names)
        if names:
            yield base, names


def class_source(definition: Definition) -> str:
    """Write the class statement with constructor and special methods."""
    node = definition.node
    assert isinstance(node, ast.ClassDef)
    decorated = [f"@{source_text(definition.module, one)}" for one in node.decorator_list]
    names = [source_text(definition.module, base) for base in node.bases]
    head = f"class {node.name}({', '.join(names)})" if names else f"class {node.name}"
    made = [one for one in node.body if isinstance(one, Function) and one.name == "__init__"]
    lines = [line for one in made for line in signature(definition.module, one).splitlines()]
    for member in own_members(definition).values():
        lines += member.signature.splitlines() if member.kind == "special" else []
    return "\n".join([*decorated, head + (":" if lines else ""), *(f"    {line}" for line in lines)])
