"""The options of tables and plugins as Markdown: what a config may write, its default and its meaning."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from crfl_core.cli.explanation import toml
from crfl_core.extend import Plugin, Table
from crfl_core.kinds.plugin import Configured
from docs.generate.markdown import cell

WORDS = {int: "integer", float: "number", str: "string", bool: "true or false", Path: "path"}
LIMITS = ((Ge, "ge", "≥"), (Gt, "gt", ">"), (Le, "le", "≤"), (Lt, "lt", "<"))


def options_table(fields: dict[str, FieldInfo]) -> str:
    """The options of a table or plugin as a Markdown table."""
    if not fields:
        return "No options."
    rows = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in fields.items():
        kind = type_text(field.annotation, field.metadata)
        rows.append(f"| `{name}` | {kind} | {default_text(field)} | {cell(field.description)} |")
    return "\n".join(rows)


def default_text(field: FieldInfo) -> str:
    """A default as a config would write it."""
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None:
        return "unset"
    if field.default == {}:
        return "its own defaults"
    if isinstance(field.default, BaseModel):
        options = field.default.model_dump(mode="json", include={"type"} | field.default.model_fields_set)
        return f"`{plain(options)}`" if options else "its own defaults"
    return f"`{plain(field.default)}`"


def plain(value: Any) -> str:
    """A value as TOML on one line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {plain(item)}' for key, item in value.items())} }}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(plain, value))}]"
    return toml(value)


def type_text(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """What may be written, in words: `integer ≥ 1 or list of integer ≥ 1`."""
    for mark in metadata:
        if isinstance(mark, Configured):
            return f"{mark.kind} plugin"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(arguments[0], marks(annotation))
    if origin in (Union, types.UnionType):
        return " or ".join(type_text(member, metadata) for member in arguments if member is not type(None))
    if origin is tuple:
        return f"list of {type_text(arguments[0])}"
    if origin is Literal:
        return " or ".join(f'`"{value}"`' for value in arguments)
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return f"table {{{', '.join(annotation.model_fields)}}}"
    limits = [f"{sign} {getattr(mark, name)}" for mark in metadata for kind, name, sign in LIMITS if type(mark) is kind]
    return " ".join([WORDS[annotation], " and ".join(limits)]).strip()


def marks(annotation: Any, metadata: Sequence[Any] = ()) -> list[Any]:
    """Everything that is attached to a type, at any depth, with the contents of `Field(...)` spread out."""
    found = list(metadata)
    for argument in get_args(annotation):
        if isinstance(argument, FieldInfo):
            found += argument.metadata
        else:
            found += marks(argument) if get_args(argument) else [argument]
    return found


def tables(annotation: Any) -> Iterator[type[Table]]:
    """The tables, other than plugins, that an annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, Table) and not issubclass(annotation, Plugin):
        yield annotation
    for argument in get_args(annotation):
        yield from tables(argument)
