"""Published data files: what they are called, what they must contain, and where they are looked for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from crfl_core.errors import DataError

FileStatus = Literal["ok", "found", "missing", "wrong"]
"""Of a data file: `found` means that the file exists and was not compared with a checksum."""

DATA_DIR = "CRFL_DATA_DIR"
CACHE_DIR = "CRFL_CACHE_DIR"


def absolute_user_path(path: Path) -> Path:
    """Return an absolute path.

    A run can then be resumed from another directory. Raises `ValueError` for a device or a pipe, which may never end.
    """
    try:
        found = path.expanduser().absolute()
    except RuntimeError as error:  # a home directory that does not exist
        raise ValueError(f"there is no folder {path.parts[0]}") from error
    if is_readable_path(found) and not (is_readable_path(found, file=True) or found.is_dir()):
        raise ValueError(f"{found} is not a regular file or folder")
    return found


UserPath = Annotated[Path, AfterValidator(absolute_user_path)]
"""The type of an option that names a file or folder, relative to the working directory or to `~`."""


@dataclass(frozen=True)
class DataFile:
    """File of a dataset. `sha256` and `size` in bytes are None if its publisher states none."""

    name: str
    sha256: str | None = None
    size: int | None = None
    urls: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    def status(self, path: Path | None, *, thorough: bool) -> FileStatus:
        """Return whether a file is the published one.

        The size is compared and, if `thorough`, the checksum.
        """
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
    """Source of a dataset: its files, below `folder` in every data directory, and what a person must know.

    `archive` is the zip or tar.gz file with all files, if they are not published one by one. `how_to_get` is
    a command or a sentence that continues an error: "run `crfl data fetch mnist`".
    """

    folder: str
    files: tuple[DataFile, ...]
    licence: str
    homepage: str
    how_to_get: str
    archive: DataFile | None = None

    def find(self, name: str, path: Path | None = None) -> Path | None:
        """Return a file of this source, packed or unpacked, or None.

        `path` may be the file itself if the source has only one.
        """
        also = (other for file in self.files if file.name == name for other in file.also)
        known = [spelling for one in (name, *also) for spelling in spellings(one)]
        if path is not None and is_readable_path(path, file=True) and (len(self.files) == 1 or path.name in known):
            return path
        for place in data_dirs(path):
            for folder in candidate_folders(place, self.folder):
                for spelling in known:
                    if is_readable_path(folder / spelling, file=True):
                        return folder / spelling
        return None


_PREVIEWING: ContextVar[bool] = ContextVar("previewing", default=False)


@contextmanager
def previewing() -> Iterator[None]:
    """Write no caches in a block, as a dry run needs.

    Estimate what takes long instead of computing it.
    """
    token = _PREVIEWING.set(True)
    try:
        yield
    finally:
        _PREVIEWING.reset(token)


def may_write_caches() -> bool:
    """Return whether a dataset may write caches.

    It keeps what it has parsed in the user's cache. A dry run writes nothing.

    >>> may_write_caches()
    True
    """
    return not _PREVIEWING.get()


def cache_dir() -> Path:
    """Return the user's cache of crfl.

    It is $CRFL_CACHE_DIR, or else the place that the operating system prefers.
    """
    from platformdirs import user_cache_path

    own = os.environ.get(CACHE_DIR)
    return Path(own) if own else user_cache_path("crfl")


def data_cache() -> Path:
    """Return the default folder of fetched data files."""
    return cache_dir() / "data"


def data_dirs(path: Path | None = None) -> tuple[Path, ...]:
    """Return the folders searched for data files.

    They are `path` if given, else $CRFL_DATA_DIR and the cache.
    """
    if path is not None:
        return (path,)
    shared = os.environ.get(DATA_DIR)
    return (*([Path(shared)] if shared else []), data_cache())


def is_readable_path(path: Path, *, file: bool = False) -> bool:
    """Return whether there is a readable file or folder at `path`."""
    try:
        return path.is_file() if file else path.exists()
    except OSError:
        return False


def find_or_explain(source: DataSource, name: str, path: Path | None = None) -> Path:
    """Return a file of a source.

    Raises `DataError` with the places searched and how to get the file.
    """
    found = source.find(name, path)
    if found is None:
        places = ", ".join(str(place) for place in data_dirs(path))
        raise DataError(
            f"{name} was not found in {places}, nor in a folder {source.folder!r} there: {source.how_to_get}, or set "
            f"{DATA_DIR} or dataset.path to a folder that has it"
        )
    return found


def candidate_folders(place: Path, name: str) -> Iterator[Path]:
    """Yield the folders below a data directory that may hold a dataset.

    The first are its folder in any spelling. The last is the directory itself.
    """
    yield place / name
    try:
        yield from sorted(
            entry
            for entry in place.iterdir()
            if entry.name != name and normalise_folder_name(entry.name) == normalise_folder_name(name)
        )
    except OSError:  # no directory, or not a readable one
        return
    yield place


def normalise_folder_name(name: str) -> str:
    """Return a folder's name in lower case, without separators."""
    return name.lower().replace("-", "").replace("_", "")


def spellings(name: str) -> tuple[str, ...]:
    """Return the names under which a file may be stored.

    It is stored as published, or unpacked.
    """
    return (name, name.removesuffix(".gz")) if name.endswith(".gz") else (name,)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    try:
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}: change its permissions, or remove it") from error
