"""The registered datasets and the state of their files: what `crfl data` shows, fetches and verifies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from crfl_core.cli.download import fetch
from crfl_core.extend import DataError, DataFile, DataSource, FileDataset, FileStatus, PluginError, Registry, first_line


@dataclass(frozen=True)
class FileState:
    """A data file, where it was found, and whether it is what its source published."""

    file: DataFile
    path: Path | None
    status: FileStatus


@dataclass(frozen=True)
class CatalogueEntry:
    """A dataset: what it is, its source if it is read from published files, and `problem` if it cannot be loaded.

    >>> CatalogueEntry("clouds", "Gaussian clouds around one random centre per class").files
    ()
    """

    name: str
    summary: str
    source: DataSource | None = None
    files: tuple[FileState, ...] = ()
    problem: str = ""


def catalogue(registry: Registry | None = None, *, thorough: bool = False) -> tuple[CatalogueEntry, ...]:
    """Every registered dataset. Sizes are compared, and checksums too if `thorough`.

    >>> "digits" in [entry.name for entry in catalogue()]
    True
    """
    registry = registry or Registry()
    return tuple(entry(registry, name, thorough=thorough) for name in registry.names("dataset"))


def entry(registry: Registry, name: str, *, thorough: bool) -> CatalogueEntry:
    """One dataset; a plugin that cannot be loaded is a problem of this entry alone."""
    try:
        plugin = registry.load("dataset", name)
    except PluginError as error:
        return CatalogueEntry(name, "", problem=str(error))
    if not issubclass(plugin, FileDataset):
        return CatalogueEntry(name, first_line(plugin))
    source = plugin.source()
    found = [(file, source.find(file.name)) for file in source.files]
    states = tuple(FileState(file, path, file.status(path, thorough=thorough)) for file, path in found)
    return CatalogueEntry(name, first_line(plugin), source, states)


def fetch_dataset(
    name: str, to: Path | None = None, *, report: Callable[[str], None] = print, registry: Registry | None = None
) -> None:
    """Download what is missing of a dataset's files to a data directory, by default the user's cache.

    >>> fetch_dataset("digits")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    crfl_core.errors.DataError: dataset 'digits' is not read from published files: there is nothing ...
    """
    fetch(published(registry or Registry(), name).source(), to, report)


def verify_datasets(name: str | None = None, *, registry: Registry | None = None) -> tuple[CatalogueEntry, ...]:
    """One dataset, or all that are read from published files, with every file compared with its checksum.

    >>> verify_datasets("digits")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    crfl_core.errors.DataError: dataset 'digits' is not read from published files: there is nothing ...
    """
    registry = registry or Registry()
    if name is None:
        return tuple(found for found in catalogue(registry, thorough=True) if found.source is not None)
    published(registry, name)
    return (entry(registry, name, thorough=True),)


def published(registry: Registry, name: str) -> type[FileDataset]:
    """A dataset that is read from published files, or the reason why there is none of that name."""
    plugin = registry.load("dataset", name)
    if not issubclass(plugin, FileDataset):
        raise DataError(f"dataset {name!r} is not read from published files: there is nothing to fetch or verify")
    return plugin
