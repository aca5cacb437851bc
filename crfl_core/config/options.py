"""Options of tables and plugins in words, and the settings of a config, line by line.

Everything is read off the schema: what a config may write, its default, an example, and where plugins belong.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tomli_w
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from crfl_core.config.loading import LoadedConfig
from crfl_core.config.merging import DEFAULT, KeyPath
from crfl_core.config.schema import RunConfig
from crfl_core.plugin_api import CONFIGURABLE, KINDS
from crfl_core.plugin_api.base import Plugin, PluginField, check_import_path
from crfl_core.records.table import Table

TYPE_NAMES = {int: "integer", float: "number", str: "string", bool: "true or false", Path: "path"}
LIMIT_SIGNS = ((Ge, "ge", "≥"), (Gt, "gt", ">"), (Le, "le", "≤"), (Lt, "lt", "<"))
EXAMPLES = {int: "1", float: "1.0", bool: "true", Path: '"file"'}
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Setting:
    """One setting of a config, and where it was written."""

    key: str
    value: Any
    origin: str

    @property
    def text(self) -> str:
        """Return the value as TOML writes it."""
        return to_toml(self.value)


def list_settings(loaded: LoadedConfig) -> list[Setting]:
    """List every setting of a resolved config, with where it was written."""
    config, origins = loaded
    tree = config.model_dump(mode="json", exclude_none=True)
    return [
        Setting(".".join(path), value, origins.of(path) if is_set(config, path) else DEFAULT)
        for path, value in walk_settings(tree, ())
    ]


def is_set(config: RunConfig, path: KeyPath) -> bool:
    """Return whether a value was written.

    Where only a plugin's name was written, its options are defaults.
    """
    here: Any = config
    for step in path:
        if isinstance(here, Table):
            if step in type(here).model_fields and step not in here.model_fields_set:
                return False
            here = getattr(here, step, None)
        elif isinstance(here, tuple):
            here = here[int(step)]
        else:  # the value is one table or list, whatever it looks like inside
            return True
    return True


def walk_settings(tree: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the path and value of every setting.

    Items of a list of tables are numbered.
    """
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from walk_settings(value, (*path, key))
    elif isinstance(tree, Sequence) and tree and all(isinstance(item, Mapping) for item in tree):
        for number, item in enumerate(tree):
            yield from walk_settings(item, (*path, str(number)))
    else:
        yield path, tree


def to_toml(value: Any) -> str:
    """Write a value as TOML on one line.

    >>> to_toml({"type": "dirichlet", "alphas": (0.5, 1.0)}), to_toml([]), to_toml({})
    ('{ type = "dirichlet", alphas = [0.5, 1.0] }', '[]', '{}')
    """
    if isinstance(value, dict):
        pairs = [
            f"{key if BARE_KEY.fullmatch(key) else json.dumps(key)} = {to_toml(item)}" for key, item in value.items()
        ]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(to_toml, value))}]"
    try:
        return (
            tomli_w.dumps({"value": str(value) if isinstance(value, Path) else value}).strip().removeprefix("value = ")
        )
    except TypeError:  # an option that no config can write
        return str(value)


def default_text(field: FieldInfo) -> str:
    """Return a default as a config would write it.

    A value is in backquotes.
    """
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None:
        return "unset"
    if field.default == {}:
        return "its own defaults"
    if isinstance(field.default, BaseModel):
        options = field.default.model_dump(mode="json", include={"type"} | field.default.model_fields_set)
        return f"`{to_toml(options)}`" if options else "its own defaults"
    return f"`{to_toml(field.default)}`"


def type_text(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Return in words what may be written.

    An example is `integer ≥ 1 or list of integer ≥ 1`.
    """
    for mark in metadata:
        if isinstance(mark, PluginField):
            return f"{mark.kind} plugin"
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return type_text(arguments[0], marks_of(annotation))
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
    limits = [
        f"{sign} {getattr(mark, name)}" for mark in metadata for kind, name, sign in LIMIT_SIGNS if type(mark) is kind
    ]
    word = TYPE_NAMES.get(annotation) or str(getattr(annotation, "__name__", annotation))
    return " ".join([word, " and ".join(limits)]).strip()


def marks_of(annotation: Any, metadata: Sequence[Any] = ()) -> list[Any]:
    """Collect everything that is attached to a type.

    Nested types count at any depth. The contents of `Field(...)` are spread out.
    """
    found = list(metadata)
    for argument in get_args(annotation):
        if isinstance(argument, FieldInfo):
            found += argument.metadata
        elif get_args(argument):
            found += marks_of(argument)
        else:
            found.append(argument)
    return found


def plugin_kinds_of(field: FieldInfo) -> list[str]:
    """List the kinds of plugins that a field can hold."""
    return [mark.kind for mark in marks_of(field.annotation, field.metadata) if isinstance(mark, PluginField)]


def tables_in(annotation: Any) -> Iterator[type[Table]]:
    """Yield the tables that an annotation mentions, except plugins.

    The options of plugins depend on their type.
    """
    if isinstance(annotation, type) and issubclass(annotation, Table) and not issubclass(annotation, Plugin):
        yield annotation
    for argument in get_args(annotation):
        yield from tables_in(argument)


def keys_of(table: type[Table] = RunConfig, path: str = "") -> Iterator[str]:
    """Yield every dotted key of a table and its inner tables.

    The options of plugins are left out.
    """
    for name, field in table.model_fields.items():
        yield f"{path}{name}"
        for inner in tables_in(field.annotation):
            yield from keys_of(inner, f"{path}{name}.")


def field_at(key: str) -> FieldInfo | None:
    """Return the field at a dotted key of a config.

    None if the schema has no such key.
    """
    table: type[Table] = RunConfig
    *path, last = key.split(".")
    for step in path:
        inner = [*tables_in(table.model_fields[step].annotation)] if step in table.model_fields else []
        if not inner:
            return None
        table = inner[0]
    return table.model_fields.get(last)


def list_choices(annotation: Any) -> Iterator[str]:
    """Yield the words that an annotation allows.

    They are those of literals, and true and false.
    """
    if annotation is bool:
        yield from ("true", "false")
    elif get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    else:
        for part in get_args(annotation):
            yield from list_choices(part)


def plugin_places() -> dict[str, tuple[str, bool]]:
    """Return where a config names plugins of each kind.

    Each kind has a dotted key, and a flag that says whether the key holds a list of plugins.
    """
    places: dict[str, tuple[str, bool]] = {}
    waiting: list[tuple[str, Mapping[str, FieldInfo]]] = [("", RunConfig.model_fields)]
    waiting += [(f"{kind}.", KINDS[kind].base.model_fields) for kind in CONFIGURABLE]
    while waiting:
        prefix, fields = waiting.pop(0)
        for name, field in fields.items():
            for kind in plugin_kinds_of(field):
                places.setdefault(kind, (prefix + name, get_origin(field.annotation) is tuple))
            if not prefix:
                waiting += [(f"{name}.", table.model_fields) for table in tables_in(field.annotation)]
    return places


def example_value(field: FieldInfo) -> str | None:
    """Return an option as an example writes it.

    It is the default or a possible value. None if it is best left out.
    """
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is None:
        return None
    if isinstance(default, BaseModel):
        options = default.model_dump(mode="json", exclude_none=True, include={"type"} | default.model_fields_set)
        return to_toml(options) if options else None
    if default is not PydanticUndefined:
        return None if default in ((), "") else to_toml(default)
    if any(getattr(mark, "func", None) is check_import_path for mark in field.metadata):
        return to_toml("my_package:Name")
    kinds = [mark.kind for mark in field.metadata if isinstance(mark, PluginField)]
    return to_toml(default_plugin(kinds[0])) if kinds else example_of_required(field.annotation)


def default_plugin(kind: str) -> Any:
    """Return the default plugin of a kind as a table."""
    key, is_list = plugin_places()[kind]
    field = RunConfig.model_fields.get(key)
    if field is None or not field.default:
        return {"type": "name"}
    return field.default[-1] if is_list else field.default


def example_of_required(annotation: Any) -> str:
    """Return a possible value of an option without a default."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Literal:
        return to_toml(arguments[0])
    if origin in (Annotated, Union, types.UnionType):
        return example_of_required(arguments[0])
    if origin is tuple:
        return f"[{example_of_required(arguments[0])}]"
    return EXAMPLES.get(annotation, '"name"')
