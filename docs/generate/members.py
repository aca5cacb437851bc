"""The public members of a class: fields, properties and methods, its own and those it inherits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from docs.generate.markdown import cell, code
from docs.generate.source import Definition, Function, documented, find, signature, string, targets, written

LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
MACHINERY = {"model_validator", "field_validator", "field_serializer", "model_serializer"}
CONSTRUCTION = ("__init__", "__post_init__")


@dataclass(frozen=True)
class Member:
    """A field, class attribute, property or method.

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
    """The members that the class itself defines, in order of the source, by name."""
    assert isinstance(definition.node, ast.ClassDef)
    found: dict[str, Member] = {}
    for statement, doc in documented(definition.node.body):
        if isinstance(statement, ast.AnnAssign):
            found |= {name: annotated(definition, name, statement, doc) for name in targets(statement)}
        elif isinstance(statement, Function) and MACHINERY.isdisjoint(decorators(statement)):
            found[statement.name] = of_function(definition, statement)
            if statement.name == "__init__":
                found |= {one.name: one for one in assigned(definition, statement) if one.name not in found}
    return {name: member for name, member in found.items() if is_public(member)}


def is_public(member: Member) -> bool:
    """Whether people may use a member; special methods are used through operators."""
    return not member.name.startswith("_") or (member.kind == "special" and member.name not in CONSTRUCTION)


def decorators(statement: Function | ast.ClassDef) -> list[str]:
    """The last words of the decorators: `model_validator`, `cached_property`, `abstractmethod`."""
    nodes = [one.func if isinstance(one, ast.Call) else one for one in statement.decorator_list]
    return [
        one.attr if isinstance(one, ast.Attribute) else one.id
        for one in nodes
        if isinstance(one, ast.Name | ast.Attribute)
    ]


def annotated(definition: Definition, name: str, statement: ast.AnnAssign, doc: str) -> Member:
    """A field or class attribute."""
    kind = shown_type(definition.module, statement.annotation)
    if kind == "ClassVar" or kind.startswith("ClassVar["):
        inner = kind.removeprefix("ClassVar").removeprefix("[").removesuffix("]")
        value = "" if statement.value is None else code(written(definition.module, statement.value))
        return Member(name, "class attribute", doc, code(inner) if inner else "", value, "", (statement.annotation,))
    options = options_of(statement.value)
    limits = [f"{LIMITS[key]} {written(definition.module, node)}" for key, node in options.items() if key in LIMITS]
    return Member(
        name,
        "field",
        string(options.get("description")) or doc,
        ", ".join([code(kind), *([cell(" and ".join(limits))] if limits else [])]),
        default_of(definition, statement.value, options),
        "",
        (statement.annotation,),
    )


def shown_type(module: str, annotation: ast.expr) -> str:
    """A type as written, without what only validates it on the way in."""
    source = written(module, annotation)
    plain = ast.unparse(WithoutValidators().visit(ast.parse(source, mode="eval")))
    return source if "Annotated[" not in source else plain.replace("'", '"')


class WithoutValidators(ast.NodeTransformer):
    """`Annotated[T, ...]` becomes T, unless a `Field(...)` says more about its values."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:  # noqa: D102
        self.generic_visit(node)
        if not (
            isinstance(node.value, ast.Name) and node.value.id == "Annotated" and isinstance(node.slice, ast.Tuple)
        ):
            return node
        first, *rest = node.slice.elts
        return node if any(getattr(getattr(one, "func", None), "id", "") == "Field" for one in rest) else first


def options_of(value: ast.expr | None) -> dict[str, ast.expr]:
    """The arguments of `Field(...)` or `field(...)`, by name; the first one is the default."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("Field", "field")):
        return {} if value is None else {"default": value}
    first = {"default": value.args[0]} if value.args else {}
    return first | {keyword.arg: keyword.value for keyword in value.keywords if keyword.arg is not None}


def default_of(definition: Definition, value: ast.expr | None, options: dict[str, ast.expr]) -> str:
    """A default as written, `required` where there is none and a constructor takes the field."""
    if (default := options.get("default")) is not None and written(definition.module, default) != "...":
        return code(written(definition.module, default))
    if isinstance(factory := options.get("default_factory"), ast.Lambda):
        return code(written(definition.module, factory.body))
    if factory is not None:
        return code(f"{written(definition.module, factory)}()")
    return "required" if value is not None or is_record(definition) else ""


def is_record(definition: Definition) -> bool:
    """Whether a constructor takes the fields of a class: of a dataclass, a named tuple, a table."""
    assert isinstance(definition.node, ast.ClassDef)
    nodes = [(one.module, one.node) for one in (definition, *bases(definition))]
    names = {written(module, base) for module, node in nodes if isinstance(node, ast.ClassDef) for base in node.bases}
    return "dataclass" in decorators(definition.node) or not names.isdisjoint({"BaseModel", "NamedTuple"})


def of_function(definition: Definition, statement: Function) -> Member:
    """A method, or what looks like an attribute from outside."""
    doc, names = ast.get_docstring(statement) or "", decorators(statement)
    annotations = tuple(node for node in ast.walk(statement.args) if isinstance(node, ast.arg) and node.annotation)
    mentions = tuple(node.annotation for node in annotations if node.annotation is not None)
    if statement.returns is not None:
        mentions = (*mentions, statement.returns)
    if not {"property", "cached_property"}.isdisjoint(names):
        returns = "" if statement.returns is None else code(written(definition.module, statement.returns))
        return Member(statement.name, "property", doc, returns, annotations=mentions)
    shown = [f"@{name}" for name in names if name in ("abstractmethod", "classmethod", "staticmethod", "final")]
    text = "\n".join([*shown, signature(definition.module, statement)])
    special = statement.name.startswith("__") and statement.name.endswith("__")
    return Member(statement.name, "special" if special else "method", doc, signature=text, annotations=mentions)


def assigned(definition: Definition, constructor: Function) -> Iterator[Member]:
    """The attributes that a constructor sets to one of its parameters, or to an object that it makes."""
    known = {argument.arg: argument.annotation for argument in [*constructor.args.args, *constructor.args.kwonlyargs]}
    for statement in constructor.body:
        if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute)):
            continue
        value = statement.value.values[-1] if isinstance(statement.value, ast.BoolOp) else statement.value
        kind = (
            known.get(value.id) if isinstance(value, ast.Name) else value.func if isinstance(value, ast.Call) else None
        )
        if kind is not None and not any(statement.targets[0].attr in own_members(base) for base in bases(definition)):
            yield Member(statement.targets[0].attr, "field", "", code(written(definition.module, kind)))


@cache
def bases(definition: Definition) -> tuple[Definition, ...]:
    """The core's classes that a class inherits from, nearest first."""
    if not isinstance(definition.node, ast.ClassDef):
        return ()
    found: dict[tuple[str, str], Definition] = {}
    for node in definition.node.bases:
        base = find(definition.module, node.id) if isinstance(node, ast.Name) else None
        if base is not None and base.is_class:
            for one in (base, *bases(base)):
                found.setdefault((one.module, one.name), one)
    return tuple(found.values())


def inherited(definition: Definition) -> Iterator[tuple[Definition, list[str]]]:
    """The bases that have members which the class does not define again, and their names."""
    known = set(own_members(definition))
    for base in bases(definition):
        names = [name for name, member in own_members(base).items() if name not in known and member.kind != "special"]
        known.update(names)
        if names:
            yield base, names


def class_source(definition: Definition) -> str:
    """The class statement with what Python calls by itself: the constructor and special methods."""
    node = definition.node
    assert isinstance(node, ast.ClassDef)
    decorated = [f"@{written(definition.module, one)}" for one in node.decorator_list]
    names = [written(definition.module, base) for base in node.bases]
    head = f"class {node.name}({', '.join(names)})" if names else f"class {node.name}"
    made = [one for one in node.body if isinstance(one, Function) and one.name == "__init__"]
    lines = [line for one in made for line in signature(definition.module, one).splitlines()]
    for member in own_members(definition).values():
        lines += member.signature.splitlines() if member.kind == "special" else []
    return "\n".join([*decorated, head + (":" if lines else ""), *(f"    {line}" for line in lines)])
