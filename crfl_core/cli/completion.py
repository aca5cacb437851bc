"""What the shell offers when a line is half written: run directories, keys of a config, plugins and their kinds."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import typer

MARKER = "crfl.json"
CONFIGS = (".toml", ".yaml", ".yml")


def run_directories(incomplete: str) -> list[str]:
    """Run directories, and folders on the way to one."""
    return [str(path) for path in folders(incomplete) if (path / MARKER).exists()] or [
        f"{path}/" for path in folders(incomplete) if any(path.glob(f"*/{MARKER}")) or any(path.glob(f"*/*/{MARKER}"))
    ]


def config_files(incomplete: str) -> list[str]:
    """Config files, and folders."""
    folder, begun = split(incomplete)
    try:
        found = sorted(path for path in folder.iterdir() if path.name.startswith(begun))
    except OSError:
        return []
    files = [str(path) for path in found if path.suffix in CONFIGS]
    return files + [f"{path}/" for path in found if path.is_dir() and not path.name.startswith(".")]


def folders(incomplete: str) -> list[Path]:
    """The folders whose path begins like this."""
    folder, begun = split(incomplete)
    try:
        return sorted(path for path in folder.iterdir() if path.name.startswith(begun) and path.is_dir())
    except OSError:
        return []


def split(incomplete: str) -> tuple[Path, str]:
    """The folder that is written out, and the beginning of a name in it."""
    head, slash, tail = incomplete.rpartition("/")
    return Path(head + slash or "."), tail


def settings(incomplete: str) -> list[str]:
    """Keys of a config with `=` behind them; behind the `=`, the values that a key can have, if they are few."""
    key, equals, value = incomplete.partition("=")
    if equals:
        return [f"{key}={choice}" for choice in values_of(key) if choice.startswith(value)]
    return [f"{name}=" for name in dict.fromkeys(keys()) if name.startswith(key)]


def kinds(incomplete: str) -> list[str]:
    """The kinds of plugins."""
    from crfl_core.plugin_api import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def plugin_names(context: typer.Context, incomplete: str) -> list[str]:
    """The names of installed plugins, of one kind if it is given."""
    from crfl_core.plugin_api import KINDS
    from crfl_core.plugin_loading.registry import Registry

    registry = Registry()
    kind = context.params.get("kind")
    chosen = (kind,) if kind in KINDS else KINDS
    return sorted({name for one in chosen for name in registry.names(one) if name.startswith(incomplete)})


def keys() -> Iterator[str]:
    """Every key of a config that belongs to the core, dotted."""
    from crfl_core.config.schema import RunConfig

    yield from keys_below(RunConfig, "")


def keys_below(table: Any, path: str) -> Iterator[str]:
    """The keys of a table and of those within it."""
    for name, field in table.model_fields.items():
        yield f"{path}{name}"
        for inner in tables_in(field.annotation):
            yield from keys_below(inner, f"{path}{name}.")


def tables_in(annotation: Any) -> list[Any]:
    """The tables with keys of their own that a field may hold: not plugins, whose options depend on their type."""
    from crfl_core.plugin_api.base import Plugin
    from crfl_core.records.table import Table

    if get_origin(annotation) in (Union, types.UnionType):
        return [table for part in get_args(annotation) for table in tables_in(part)]
    is_table = isinstance(annotation, type) and issubclass(annotation, Table) and not issubclass(annotation, Plugin)
    return [annotation] if is_table else []


def values_of(key: str) -> list[str]:
    """The values of a key: the plugins of its kind, the words that it knows, or true and false."""
    from crfl_core.config.schema import RunConfig
    from crfl_core.plugin_loading.registry import Registry

    table: Any = RunConfig
    *path, last = key.removesuffix(".type").split(".")
    for step in path:
        found = tables_in(table.model_fields[step].annotation) if step in table.model_fields else []
        if not found:
            return []
        table = found[0]
    if last not in table.model_fields:
        return []
    field = table.model_fields[last]
    held = list(kinds_in(*field.metadata, field.annotation))
    return list(Registry().names(held[0])) if held else list(words_of(field.annotation))


def kinds_in(*parts: Any) -> Iterator[str]:
    """The kinds of plugins that the parts of an annotation mark."""
    from crfl_core.plugin_api.base import Configured

    for part in parts:
        if isinstance(part, Configured):
            yield part.kind
        yield from kinds_in(*get_args(part), *getattr(part, "__metadata__", ()))


def words_of(annotation: Any) -> Iterator[str]:
    """The words that an annotation allows."""
    if annotation is bool:
        yield from ("true", "false")
    elif get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    else:
        for part in get_args(annotation):
            yield from words_of(part)
