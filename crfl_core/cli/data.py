"""`crfl data`: the data files of datasets, where they are, how to fetch them, and whether they are intact."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from crfl_core.cli import echo
from crfl_core.cli.arguments import JsonOption
from crfl_core.cli.download import fetch_files
from crfl_core.errors import DataError, PluginError
from crfl_core.files.data_files import DataFile, DataSource, FileStatus
from crfl_core.plugin_api.dataset import FileDataset
from crfl_core.plugin_loading.registry import Registry, plugin_summary

EXIT_WRONG_FILE = 2

data = typer.Typer(no_args_is_help=True, help="Find, fetch and verify the files of datasets.")


@dataclass(frozen=True)
class FileState:
    """A data file, where it was found, and whether it is the published file."""

    file: DataFile
    path: Path | None
    status: FileStatus


@dataclass(frozen=True)
class DatasetEntry:
    """A dataset: its summary, its source if it reads published files, and `problem` if it cannot be loaded.

    >>> DatasetEntry("clouds", "Gaussian clouds around one random centre per class").files
    ()
    """

    name: str
    summary: str
    source: DataSource | None = None
    files: tuple[FileState, ...] = ()
    problem: str = ""


@data.command("list")
def list_(json: JsonOption = False) -> None:
    """List every dataset with its files, sizes and licence."""
    entries = list_datasets()
    if json:
        from pydantic_core import to_json

        echo(to_json(entries, indent=2).decode())
        return
    for entry in entries:
        echo("\n".join(fit_terminal(describe_dataset(entry))))


@data.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Name of the dataset.", show_default=False)],
    to: Annotated[Path | None, typer.Option(help="Data directory; the user's cache if not given.")] = None,
) -> None:
    """Download the files of a dataset and verify them.

    Mirrors are tried in turn, and an interrupted download resumes.
    """
    fetch_dataset(name, to, report=echo)


@data.command()
def verify(
    name: Annotated[str | None, typer.Argument(help="Name of a dataset; default: all.", show_default=False)] = None,
    json: JsonOption = False,
) -> None:
    """Compare the files with their published checksums.

    Exit 2 if one is wrong.
    """
    states = [(entry.name, state) for entry in verify_datasets(name) for state in entry.files]
    if json:
        from pydantic_core import to_json

        found = [{"dataset": dataset, "status": state.status, "path": state.path} for dataset, state in states]
        echo(to_json(found, indent=2).decode())
    else:
        for dataset, state in states:
            echo(f"{state.status:<8} {dataset}: {state.path or state.file.name}")
    if any(state.status == "wrong" for _, state in states):
        raise typer.Exit(EXIT_WRONG_FILE)


def fit_terminal(lines: Iterable[str]) -> Iterator[str]:
    """Break lines between words where the terminal ends.

    In a pipe they stay whole. Paths always stay whole.
    """
    width = shutil.get_terminal_size().columns
    for line in lines:
        if sys.stdout.isatty() and len(line) > width:
            indent = " " * (len(line) - len(line.lstrip()) + 2)
            yield from textwrap.wrap(
                line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
        else:
            yield line


def describe_dataset(entry: DatasetEntry) -> Iterator[str]:
    """Yield the lines of `crfl data list` about a dataset.

    Every file has a line.
    """
    yield f"{entry.name}: {entry.problem or entry.summary}"
    if entry.source is not None:
        found = sum(state.path is not None for state in entry.files)
        missing = "" if found == len(entry.files) else f"; for the missing ones: {entry.source.how_to_get}"
        yield f"  {found} of {len(entry.files)} files found{missing}"
        yield f"  licence: {entry.source.licence}; {entry.source.homepage}"
    for state in entry.files:
        size = state.file.size
        if size is None and state.path is not None:
            size = state.path.stat().st_size
        shown_size = "" if size is None else f"{size:,}"
        digest = "no checksum" if state.file.sha256 is None else state.file.sha256[:12]
        yield f"  {state.status:<8}{shown_size:>12}  {digest:<12} {state.path or state.file.name}"
    yield ""


def list_datasets(registry: Registry | None = None, *, thorough: bool = False) -> tuple[DatasetEntry, ...]:
    """List every registered dataset.

    Compares the sizes of files, and also checksums if `thorough`.

    >>> "digits" in [entry.name for entry in list_datasets()]
    True
    """
    registry = registry or Registry()
    return tuple(dataset_entry(registry, name, thorough=thorough) for name in registry.names("dataset"))


def dataset_entry(registry: Registry, name: str, *, thorough: bool) -> DatasetEntry:
    """Return the entry of one dataset.

    A plugin that cannot be loaded is a problem of this entry alone.
    """
    try:
        plugin = registry.load("dataset", name)
    except PluginError as error:
        return DatasetEntry(name, "", problem=str(error))
    if not issubclass(plugin, FileDataset):
        return DatasetEntry(name, plugin_summary(plugin))
    source = plugin.source()
    found = [(file, source.find(file.name)) for file in source.files]
    states = tuple(FileState(file, path, file.status(path, thorough=thorough)) for file, path in found)
    return DatasetEntry(name, plugin_summary(plugin), source, states)


def fetch_dataset(
    name: str, to: Path | None = None, *, report: Callable[[str], None] = print, registry: Registry | None = None
) -> None:
    """Download the missing files of a dataset to a data directory.

    By default it is the user's cache.

    >>> fetch_dataset("digits")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    crfl_core.errors.DataError: dataset 'digits' is not read from published files: there is nothing ...
    """
    fetch_files(load_file_dataset(registry or Registry(), name).source(), to, report)


def verify_datasets(name: str | None = None, *, registry: Registry | None = None) -> tuple[DatasetEntry, ...]:
    """Compare a dataset's files with their published checksums.

    By default all datasets are compared.

    >>> verify_datasets("digits")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    crfl_core.errors.DataError: dataset 'digits' is not read from published files: there is nothing ...
    """
    registry = registry or Registry()
    if name is None:
        return tuple(entry for entry in list_datasets(registry, thorough=True) if entry.source is not None)
    load_file_dataset(registry, name)
    return (dataset_entry(registry, name, thorough=True),)


def load_file_dataset(registry: Registry, name: str) -> type[FileDataset]:
    """Load a dataset that reads published files.

    Raises `DataError` for any other dataset.
    """
    plugin = registry.load("dataset", name)
    if not issubclass(plugin, FileDataset):
        raise DataError(f"dataset {name!r} is not read from published files: there is nothing to fetch or verify")
    return plugin
