"""Write the generated parts of pages: keys, plugins, datasets, checks, scaffolded modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from inspect import cleandoc
from pathlib import Path

import click
import typer

from crfl_core import RunConfig
from crfl_core.cli.app import TASKS, app
from crfl_core.cli.scaffold import PluginNames, package_files
from crfl_core.config.options import plugin_kinds_of, tables_in
from crfl_core.extend import DataSource, FileDataset, Plugin, Registry
from crfl_core.plugin_api import KINDS
from crfl_core.plugin_loading.registry import plugin_summary
from crfl_core.reporting.glossary import GLOSSARY
from crfl_core.testing.suite import PROMISES
from docs.generate.markdown import anchor, cell
from docs.generate.options import options_table
from docs.generate.performance import performance
from docs.generate.step_table import step_table

DISTRIBUTION = "crfl"
PAGE_KINDS = tuple(kind for kind in KINDS if kind != "command")
"""The kinds of plugins on docs/plugins.md."""
PART = re.compile(r"(<!-- generated: (?!reference)(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
SCAFFOLDED = {
    "aggregator": "bounded-mean",
    "stage": "short-updates",
    "optimiser": "warm-up",
    "attack": "relabelling",
    "dataset": "gaussian-clouds",
    "partitioner": "label-shards",
    "model": "tanh-network",
    "feature-map": "squash",
    "algorithm": "even-steps",
    "certificate": "final-round",
    "engine": "backwards",
    "tracker": "norm-log",
    "command": "certified-share",
}
"""What the pages about writing plugins show as an example."""


IN_GIT = frozenset({"glossary", *(kind.replace("-", "_") for kind in SCAFFOLDED)})
"""The parts that readers of a page need: they stand in git in full. The others are part of the site alone."""


def part_writers() -> dict[str, Callable[[], str]]:
    """Return the function that writes each generated part, by the name that pages give it."""
    found: dict[str, Callable[[], str]] = {
        "keys": config_keys,
        "plugins": installed_plugins,
        "datasets": included_datasets,
        "checks": conformance_checks,
        "commands": commands_by_task,
        "glossary": terms,
        "performance": performance,
        "steps": partial(step_table, DISTRIBUTION),
    }
    for kind, name in SCAFFOLDED.items():
        found[kind.replace("-", "_")] = partial(scaffold_module, kind, name)
    return found


def replace_parts(pages: Mapping[Path, str], names: Collection[str]) -> dict[Path, str]:
    """Return the pages with the generated parts of these names as they should be."""
    known = part_writers()

    def replacement(match: re.Match[str]) -> str:
        if match[2] not in names:
            return match[0]
        return f"{match[1]}\n{known[match[2]]()}\n{match[3]}"

    return {path: PART.sub(replacement, text) for path, text in pages.items()}


def config_keys() -> str:
    """Write a section for the top level and for every table of a config."""
    sections = ["### Top level", options_table(RunConfig.model_fields)]
    for name, field in RunConfig.model_fields.items():
        kinds = plugin_kinds_of(field)
        if kinds:
            continue  # its keys are those of the plugin: docs/plugins.md
        for table in tables_in(field.annotation):
            sections += [f"### `[{name}]`", cleandoc(table.__doc__ or ""), options_table(table.model_fields)]
    return "\n\n".join(sections) + "\n"


def installed_plugins() -> str:
    """Write a table of the included plugins, then the options of each; commands have a page of their own."""
    registry = Registry()
    rows = ["| kind | name | what it is |", "| --- | --- | --- |"]
    sections = []
    for kind in PAGE_KINDS:
        sections.append(f"## {kind}\n\nEntry-point group `{KINDS[kind].group}`.")
        for name in registry.names(kind):
            if any(found.distribution == DISTRIBUTION for found in registry.found[kind][name]):
                title = plugin_heading(kind, name, registry)
                plugin = registry.load(kind, f"{DISTRIBUTION}:{name}")
                rows.append(f"| {kind} | [`{name}`](#{anchor(title)}) | {cell(plugin_summary(plugin))} |")
                sections.append(plugin_section(title, plugin))
    return "\n\n".join(["\n".join(rows), *sections]) + "\n"


def plugin_heading(kind: str, name: str, registry: Registry) -> str:
    """Return the heading of a plugin; names that several kinds use get their kind, so that anchors are unique."""
    kinds = [one for one in PAGE_KINDS if name in registry.names(one)]
    return f"`{name}`" if len(kinds) == 1 else f"`{name}` ({kind})"


def commands_by_task() -> str:
    """Write the commands of crfl with their arguments and options, in the order of `crfl --help`."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    registry = Registry()
    sections = []
    for task, names in TASKS.items():
        sections.append(f"## {task}")
        for name in names:
            found = group.commands.get(name) or registry.command(f"{DISTRIBUTION}:{name}").click_command
            sections += command_parts(name, found)
    return "\n\n".join(sections) + "\n"


def terms() -> str:
    """Write the terms of the glossary, each with its explanation."""
    rows = [f"| {term} | {cell(GLOSSARY[term])} |" for term in sorted(GLOSSARY)]
    return "\n".join(["| term | meaning |", "| --- | --- |", *rows]) + "\n"


def command_parts(name: str, command: click.Command) -> Iterator[str]:
    """Write help and options of a command, then of its subcommands."""
    rows = ["| argument or option | meaning |", "| --- | --- |"]
    for parameter in command.params:
        shown = ", ".join(parameter.opts) if isinstance(parameter, click.Option) else str(parameter.name).upper()
        rows.append(f"| `{shown}` | {cell(getattr(parameter, 'help', None))} |")
    yield f"### `crfl {name}`"
    if command.help:
        yield cleandoc(command.help)
    if command.params:
        yield "\n".join(rows)
    for inner, subcommand in command.commands.items() if isinstance(command, click.Group) else ():
        yield from command_parts(f"{name} {inner}", subcommand)


def scaffold_module(kind: str, name: str) -> str:
    """Write the module that `crfl new` makes for a plugin."""
    names = PluginNames(kind, name)
    package = package_files(names, licence="none", author=None, registry=Registry())
    return f"```python\n{package[f'src/{names.module}/__init__.py']}```\n"


def conformance_checks() -> str:
    """Write the checks of the conformance kit, by base class."""
    bases = dict.fromkeys(promise.base for promise in PROMISES)
    sections = []
    for base in bases:
        rows = [f"| `{one.name}` | {cell(one.text)} |" for one in PROMISES if one.base is base]
        sections.append("\n".join([f"### {base.__name__}", "", "| check | promise |", "| --- | --- |", *rows]))
    return "\n\n".join(sections) + "\n"


def included_datasets() -> str:
    """Write a table of the included datasets, then their files."""
    registry = Registry()
    rows, sections = ["| dataset | what it is | licence |", "| --- | --- | --- |"], []
    for name in registry.names("dataset"):
        if any(found.distribution == DISTRIBUTION for found in registry.found["dataset"][name]):
            plugin = registry.load("dataset", f"{DISTRIBUTION}:{name}")
            source = plugin.source() if issubclass(plugin, FileDataset) else None
            place = anchor(plugin_heading("dataset", name, registry))
            licence = "" if source is None else f"[{cell(source.licence)}]({source.homepage})"
            rows.append(f"| [`{name}`](plugins.md#{place}) | {cell(plugin_summary(plugin))} | {licence} |")
            if source is not None:
                sections.append(files_section(name, source))
    return "\n\n".join(["\n".join(rows), *sections]) + "\n"


def files_section(name: str, source: DataSource) -> str:
    """Write the files of a dataset with sizes, checksums and mirrors."""
    rows = ["| file | bytes | SHA-256 |", "| --- | ---: | --- |"]
    for file in source.files:
        names = " or ".join(f"`{one}`" for one in (file.name, *file.also))
        digest = "not published" if file.sha256 is None else f"`{file.sha256}`"
        rows.append(f"| {names} | {'' if file.size is None else f'{file.size:,}'} | {digest} |")
    published = [file.urls for file in (*source.files, *([source.archive] if source.archive else [])) if file.urls]
    mirrors = "".join(f"\n- <{url.rpartition('/')[0]}/>" for url in published[0]) if published else ""
    how = f"To get them, {source.how_to_get}. They belong in a folder `{source.folder}`."
    return f"### Files of {name}\n\n{how}" + (f" Mirrors:\n{mirrors}" if mirrors else "") + "\n\n" + "\n".join(rows)


def plugin_section(title: str, plugin: type[Plugin]) -> str:
    """Write description and options of a plugin and of its nested tables, under a heading."""
    parts = [f"### {title}", cleandoc(plugin.__doc__ or ""), options_table(plugin.model_fields)]
    for option, field in plugin.model_fields.items():
        for table in tables_in(field.annotation):
            summary = cleandoc(table.__doc__ or "").partition("\n")[0]
            parts += [f"`{option}` as a table: {summary}", options_table(table.model_fields)]
    return "\n\n".join(parts)
