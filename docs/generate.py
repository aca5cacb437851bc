"""Writes the parts of the documentation that the code already knows: `python docs/generate.py`.

A page keeps its prose; only what stands between a `<!-- generated: NAME -->` and the next `<!-- end -->` is replaced.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from annotated_types import Ge, Gt, Le, Lt
from crfl_commands.scaffold import Names, files
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from crfl_core import RunConfig
from crfl_core.cli.explanation import toml
from crfl_core.extend import DataSource, FileDataset, Plugin, Registry, Table
from crfl_core.kinds import KINDS
from crfl_core.kinds.plugin import Configured
from crfl_core.plugins import first_line
from crfl_core.testing.suite import PROMISES

DOCS = Path(__file__).parent
DISTRIBUTION = "crfl"
PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
WORDS = {int: "integer", float: "number", str: "string", bool: "true or false", Path: "path"}
SCAFFOLDED = {
    "aggregator": "bounded-mean",
    "stage": "short-updates",
    "attack": "relabelling",
    "dataset": "gaussian-clouds",
    "partitioner": "label-shards",
    "model": "tanh-network",
    "feature-map": "squash",
    "certificate": "final-round",
    "engine": "backwards",
    "tracker": "norm-log",
    "command": "certified-share",
}
"""What the pages about writing plugins show as an example."""
LIMITS = ((Ge, "ge", "≥"), (Gt, "gt", ">"), (Le, "le", "≤"), (Lt, "lt", "<"))


def main() -> None:
    """Write every page that has a generated part."""
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


def pages() -> dict[Path, str]:
    """Every page with a generated part, as it should be."""
    parts: dict[str, Callable[[], str]] = {
        "keys": config_keys,
        "plugins": installed_plugins,
        "datasets": included_datasets,
        "checks": conformance_checks,
    }
    for kind, name in SCAFFOLDED.items():
        parts[kind.replace("-", "_")] = partial(scaffolded, kind, name)
    found = {}
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if PART.search(text):
            found[path] = PART.sub(lambda match: f"{match[1]}\n{parts[match[2]]()}\n{match[3]}", text)
    return found


def config_keys() -> str:
    """One section for the top level and one for every table, in the order of the schema."""
    sections = ["### Top level", options_table(RunConfig.model_fields)]
    for name, field in RunConfig.model_fields.items():
        kinds = [mark.kind for mark in marks(field.annotation, field.metadata) if isinstance(mark, Configured)]
        if kinds:
            continue  # its keys are those of the plugin: docs/plugins.md
        for table in tables(field.annotation):
            sections += [f"### `[{name}]`", cleandoc(table.__doc__ or ""), options_table(table.model_fields)]
    return "\n\n".join(sections) + "\n"


def installed_plugins() -> str:
    """A row for every plugin of this distribution, then its options, kind by kind."""
    registry = Registry()
    rows, sections = ["| kind | name | what it is |", "| --- | --- | --- |"], []
    for kind, (group, _) in KINDS.items():
        sections.append(f"## {kind}\n\nEntry-point group `{group}`.")
        for name in registry.names(kind):
            if any(found.distribution == DISTRIBUTION for found in registry.found[kind][name]):
                if kind == "command":
                    command = registry.command(f"{DISTRIBUTION}:{name}")
                    rows.append(f"| {kind} | [`{name}`](#{name}) | {cell(command.summary)} |")
                    sections.append(f"### `{name}`\n\n" + "\n\n".join(command_parts(name, command.click_command)))
                    continue
                plugin = registry.load(kind, f"{DISTRIBUTION}:{name}")
                rows.append(f"| {kind} | [`{name}`](#{name}) | {cell(first_line(plugin))} |")
                sections.append(plugin_section(name, plugin))
    return "\n\n".join(["\n".join(rows), *sections]) + "\n"


def command_parts(name: str, command: click.Command) -> Iterator[str]:
    """What people type to call a command, its help, arguments and options; then the same of its subcommands."""
    rows = ["| argument or option | meaning |", "| --- | --- |"]
    for parameter in command.params:
        shown = ", ".join(parameter.opts) if isinstance(parameter, click.Option) else str(parameter.name).upper()
        rows.append(f"| `{shown}` | {cell(getattr(parameter, 'help', None))} |")
    yield f"`crfl {name}`: {cleandoc(command.help or '')}"
    if command.params:
        yield "\n".join(rows)
    for inner, subcommand in command.commands.items() if isinstance(command, click.Group) else ():
        yield from command_parts(f"{name} {inner}", subcommand)


def scaffolded(kind: str, name: str) -> str:
    """The module that `crfl new` writes for a plugin of this name."""
    names = Names(kind, name)
    package = files(names, licence="none", author=None, registry=Registry())
    return f"```python\n{package[f'src/{names.module}/__init__.py']}```\n"


def conformance_checks() -> str:
    """The checks of the conformance kit with what they promise, by the class that promises it."""
    bases = dict.fromkeys(promise.base for promise in PROMISES)
    sections = []
    for base in bases:
        rows = [f"| `{one.name}` | {cell(one.text)} |" for one in PROMISES if one.base is base]
        sections.append("\n".join([f"### {base.__name__}", "", "| check | promise |", "| --- | --- |", *rows]))
    return "\n\n".join(sections) + "\n"


def included_datasets() -> str:
    """A row for every dataset of this distribution, then the files of those that have any."""
    registry = Registry()
    rows, sections = ["| dataset | what it is | licence |", "| --- | --- | --- |"], []
    for name in registry.names("dataset"):
        if any(found.distribution == DISTRIBUTION for found in registry.found["dataset"][name]):
            plugin = registry.load("dataset", f"{DISTRIBUTION}:{name}")
            source = plugin.source() if issubclass(plugin, FileDataset) else None
            licence = "" if source is None else f"[{cell(source.licence)}]({source.homepage})"
            rows.append(f"| [`{name}`](plugins.md#{name}) | {cell(first_line(plugin))} | {licence} |")
            if source is not None:
                sections.append(files_section(name, source))
    return "\n\n".join(["\n".join(rows), *sections]) + "\n"


def files_section(name: str, source: DataSource) -> str:
    """The files of a dataset with sizes and checksums, and the mirrors that have them."""
    rows = ["| file | bytes | SHA-256 |", "| --- | ---: | --- |"]
    for file in source.files:
        names = " or ".join(f"`{one}`" for one in (file.name, *file.also))
        digest = "not published" if file.sha256 is None else f"`{file.sha256}`"
        rows.append(f"| {names} | {'' if file.size is None else f'{file.size:,}'} | {digest} |")
    published = [file.urls for file in (*source.files, *([source.archive] if source.archive else [])) if file.urls]
    mirrors = "".join(f"\n- <{url.rpartition('/')[0]}/>" for url in published[0]) if published else ""
    how = f"To get them, {source.how_to_get}. They belong into a folder `{source.folder}`."
    return f"### Files of {name}\n\n{how}" + (f" Mirrors:\n{mirrors}" if mirrors else "") + "\n\n" + "\n".join(rows)


def plugin_section(name: str, plugin: type[Plugin]) -> str:
    """Name, description and options of one plugin, and of the tables that its options are made of."""
    parts = [f"### `{name}`", cleandoc(plugin.__doc__ or ""), options_table(plugin.model_fields)]
    for option, field in plugin.model_fields.items():
        for table in tables(field.annotation):
            parts += [f"`{option}` as a table: {first_sentence(table)}", options_table(table.model_fields)]
    return "\n\n".join(parts)


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


def cell(text: str | None) -> str:
    """Text that Markdown leaves alone inside a table."""
    return (text or "").replace("|", "\\|").replace("<", "&lt;")


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


def first_sentence(table: type[Table]) -> str:
    """What a table is, from its docstring."""
    return cleandoc(table.__doc__ or "").partition("\n")[0]


if __name__ == "__main__":
    main()
