"""The options of tables and plugins in words: what a config may write, its default, and where it belongs."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from crfl_core.cli.explanation import toml
from crfl_core.config.schema import RunConfig
from crfl_core.plugin_api import CONFIGURABLE, KINDS
from crfl_core.plugin_api.base import Configured, Plugin, admitted
from crfl_core.records.table import Table

WORDS = {int: "integer", float: "number", str: "string", bool: "true or false", Path: "path"}
LIMITS = ((Ge, "ge", "≥"), (Gt, "gt", ">"), (Le, "le", "≤"), (Lt, "lt", "<"))


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
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(plain, value))}]"
    try:
        return toml(str(value) if isinstance(value, Path) else value)
    except TypeError:  # an option that no config can write
        return str(value)


def type_text(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """What may be written, in words: `integer ≥ 1 or list of integer ≥ 1`."""
    for mark in metadata:
        if isinstance(mark, Configured):
            return f"{mark.kind} plugin"
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return type_text(arguments[0], marks(annotation))
    if origin in (Union, types.UnionType):
        return " or ".join(type_text(member, metadata) for member in arguments if member is not type(None))
    if origin is tuple:
        return f"list of {type_text(arguments[0])}"
    if origin is dict:
        return "table"
    if origin is Literal:
        return " or ".join(f'`"{value}"`' for value in arguments)
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return f"table {{{', '.join(annotation.model_fields)}}}"
    limits = [f"{sign} {getattr(mark, name)}" for mark in metadata for kind, name, sign in LIMITS if type(mark) is kind]
    word = WORDS.get(annotation) or str(getattr(annotation, "__name__", annotation))
    return " ".join([word, " and ".join(limits)]).strip()


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


def places() -> dict[str, tuple[str, bool]]:
    """Where a config names plugins of each kind: the dotted key, and whether it holds a list of them."""
    found: dict[str, tuple[str, bool]] = {}
    waiting: list[tuple[str, Mapping[str, FieldInfo]]] = [("", RunConfig.model_fields)]
    waiting += [(f"{kind}.", KINDS[kind].base.model_fields) for kind in CONFIGURABLE]
    while waiting:
        prefix, fields = waiting.pop(0)
        for name, field in fields.items():
            everything = marks(field.annotation, field.metadata)
            for mark in (mark for mark in everything if isinstance(mark, Configured)):
                found.setdefault(mark.kind, (prefix + name, get_origin(field.annotation) is tuple))
            if not prefix:
                waiting += [(f"{name}.", table.model_fields) for table in tables(field.annotation)]
    return found


def example_value(field: FieldInfo) -> str | None:
    """An option as an example writes it: its default, or something that it could be; None if it is best left out."""
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is None:
        return None
    if isinstance(default, BaseModel):
        options = default.model_dump(mode="json", exclude_none=True, include={"type"} | default.model_fields_set)
        return plain(options) if options else None
    if default is not PydanticUndefined:
        return None if default in ((), "") else plain(default)
    if any(getattr(mark, "func", None) is admitted for mark in field.metadata):
        return plain("my_package:Name")
    kinds = [mark.kind for mark in field.metadata if isinstance(mark, Configured)]
    return plain(usual(kinds[0])) if kinds else required_value(field.annotation)


def usual(kind: str) -> Any:
    """The plugin of a kind that a config has if it names none, as a table."""
    key, is_list = places()[kind]
    field = RunConfig.model_fields.get(key)
    if field is None or not field.default:
        return {"type": "name"}
    return field.default[-1] if is_list else field.default


def required_value(annotation: Any) -> str:
    """Something that an option without a default could be."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Literal:
        return plain(arguments[0])
    if origin in (Annotated, Union, types.UnionType):
        return required_value(arguments[0])
    if origin is tuple:
        return f"[{required_value(arguments[0])}]"
    return {int: "1", float: "1.0", bool: "true", Path: '"file"'}.get(annotation, '"name"')
