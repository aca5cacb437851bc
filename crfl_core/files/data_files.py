"""Published data files: what they are called, what they must contain, and where they are looked for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from crfl_core.errors import DataError

FileStatus = Literal["ok", "found", "missing", "wrong"]
"""Of a data file: `found` is there, but nobody compared its content with a checksum."""

DATA_DIR = "CRFL_DATA_DIR"
CACHE_DIR = "CRFL_CACHE_DIR"


def from_here(path: Path) -> Path:
    """An absolute path, so that a run can be resumed from another directory."""
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:  # somebody's home that does not exist
        raise ValueError(f"there is no folder {path.parts[0]}") from error


UserPath = Annotated[Path, AfterValidator(from_here)]
"""The type of an option that names a file or folder, relative to the working directory or to `~`."""


@dataclass(frozen=True)
class DataFile:
    """A file of a dataset. `sha256` and `size` in bytes are None where nobody has published them.

    `urls` are mirrors in the order in which they are tried; without any, the file cannot be fetched by itself. `also`
    are other names under which people keep the file, or a version of it.
    """

    name: str
    sha256: str | None = None
    size: int | None = None
    urls: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    def status(self, path: Path | None, *, thorough: bool) -> FileStatus:
        """Whether a file is what its source published: by its size and, if `thorough`, by its checksum."""
        if path is None:
            return "missing"
        if path.name != self.name:  # unpacked, or under a name of the user's own
            return "found"
        if self.size is not None and path.stat().st_size != self.size:
            return "wrong"
        if self.sha256 is None or not thorough:
            return "found"
        return "ok" if sha256(path) == self.sha256 else "wrong"


@dataclass(frozen=True)
class DataSource:
    """Where a dataset comes from: its files, below `folder` in every data directory, and what a person must know.

    `archive` is the zip file in which all files are published, if they are not published one by one. `how_to_get` is
    a command or a sentence that continues an error: "run `crfl data fetch mnist`".
    """

    folder: str
    files: tuple[DataFile, ...]
    licence: str
    homepage: str
    how_to_get: str
    archive: DataFile | None = None

    def find(self, name: str, path: Path | None = None) -> Path | None:
        """A file of this source, packed or unpacked, or None. `path` may be the file itself if there is only one."""
        also = (other for file in self.files if file.name == name for other in file.also)
        known = [spelling for one in (name, *also) for spelling in spellings(one)]
        if path is not None and exists(path, file=True) and (len(self.files) == 1 or path.name in known):
            return path
        for place in data_dirs(path):
            for folder in folders(place, self.folder):
                for spelling in known:
                    if exists(folder / spelling, file=True):
                        return folder / spelling
        return None


def cache_dir() -> Path:
    """The user's cache of crfl: $CRFL_CACHE_DIR, else where the operating system wants it."""
    from platformdirs import user_cache_path

    own = os.environ.get(CACHE_DIR)
    return Path(own) if own else user_cache_path("crfl")


def data_cache() -> Path:
    """Where fetched data files go if nobody says otherwise."""
    return cache_dir() / "data"


def data_dirs(path: Path | None = None) -> tuple[Path, ...]:
    """Where data files are looked for: `path` alone if a config gives one, else $CRFL_DATA_DIR, then the cache."""
    if path is not None:
        return (path,)
    shared = os.environ.get(DATA_DIR)
    return (*([Path(shared)] if shared else []), data_cache())


def exists(path: Path, *, file: bool = False) -> bool:
    """Whether there is something, or a file. Where the system lets nobody look, there is nothing."""
    try:
        return path.is_file() if file else path.exists()
    except OSError:
        return False


def find_or_explain(source: DataSource, name: str, path: Path | None = None) -> Path:
    """A file of a source; a `DataError` says where it was looked for and how to get it."""
    found = source.find(name, path)
    if found is None:
        places = ", ".join(str(place) for place in data_dirs(path))
        raise DataError(
            f"{name} was not found in {places}, nor in a folder {source.folder!r} there: {source.how_to_get}, or set "
            f"{DATA_DIR} or dataset.path to a folder that has it"
        )
    return found


def folders(place: Path, name: str) -> Iterator[Path]:
    """The folder of a dataset below a data directory, however it is spelt, then the directory itself."""
    yield place / name
    try:
        yield from sorted(entry for entry in place.iterdir() if entry.name != name and plain(entry.name) == plain(name))
    except OSError:  # no directory, or not a readable one
        return
    yield place


def plain(name: str) -> str:
    """A folder's name without what people spell differently.

    >>> plain("Fashion-MNIST") == plain("fashion_mnist")
    True
    """
    return name.lower().replace("-", "").replace("_", "")


def spellings(name: str) -> tuple[str, ...]:
    """The names under which a file may lie: as published, or unpacked."""
    return (name, name.removesuffix(".gz")) if name.endswith(".gz") else (name,)


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content."""
    try:
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}: change its permissions, or remove it") from error
