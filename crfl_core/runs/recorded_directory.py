"""A directory that records the digest of each of its files, and that one process at a time writes to.

crfl.json      the marker: says what kind of directory this is
status.json    how far the work has come, the SHA-256 of every file that was written so far, and its own
manifest.json  the SHA-256 of every file of finished work; its own digest is in status.json
.lock          locked by the process that writes

Every reader compares the bytes of a file with its digest. When the work is finished the list moves from `status.json`
to `manifest.json`: from then on a file that is not listed does not belong to the work. Files are read if they are
regular and fit into memory, and nothing is written through a link.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, TextIO, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from crfl_core.errors import StoreError, one_line
from crfl_core.files.atomic_files import (
    LOCK,
    TEMPORARY_NAME,
    content_digest,
    explain_os_errors,
    open_regular,
    refuse_links,
    remove_temporary_files,
    replace_file,
)
from crfl_core.files.bounded_reading import read_regular_file

FORMAT = 1
"""Format of the directories that this version writes and reads."""

MARKER = "crfl.json"
STATUS = "status.json"
MANIFEST = "manifest.json"
FINISHED = "finished"

REPLACED = ".replaced"
"""Marks a directory that was set aside to be replaced."""

RECORD_FILES = frozenset({MARKER, LOCK, REPLACED, STATUS, MANIFEST})
"""Files that this module writes."""

SEAL = "sha256"
"""Entry of a sealed JSON file with the digest of all other entries."""

MOST_JSON_BYTES = 2**28
"""Bytes of the largest JSON file that is parsed; as Python objects it takes several times that memory."""

JSON = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="strings"))

Facts = TypeVar("Facts", bound=BaseModel)


class RecordedDirectory:
    """A directory of plain files, each compared with its recorded digest when it is read.

    Reading changes nothing, and writing needs the lock. A file that cannot be read or written is a `StoreError` that
    names it.
    """

    kind: ClassVar[str]
    """Kind of directory that the marker names."""

    states: ClassVar[tuple[str, ...]] = (FINISHED,)
    """States of the work, in order."""

    file_names: ClassVar[re.Pattern[str]] = re.compile("")
    """Names of the files that the work writes."""

    growing_folder: ClassVar[str] = "what-if"
    """A folder that may grow when the work is finished; each folder in it has a record of its own."""

    _marker_inode: int | None = None

    def __init__(self, path: Path) -> None:
        self.path = path

    # Files

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically, and note its digest."""
        refuse_links(self.path, name)
        replace_file(self.path / name, content)
        self.digests[name] = content_digest(content)

    def write_json(self, name: str, content: object) -> None:
        """Write a JSON file; infinities are written as strings."""
        self.write(name, JSON.dump_json(content, indent=2) + b"\n")

    def write_sealed(self, name: str, table: Mapping[str, object]) -> None:
        """Write a JSON table that holds the digest of its entries.

        It needs no other record.
        """
        sealed = {**table, SEAL: table_digest(table)}
        self.write_json(name, sealed)

    def read_sealed(self, name: str) -> dict[str, Any]:
        """Read what `write_sealed` wrote. Raises `StoreError` if it is not that."""
        return self.parse_sealed(name, self.read(name))

    def parse_sealed(self, name: str, content: bytes) -> dict[str, Any]:
        """Parse a JSON table, and compare it with the digest in it."""
        table = self.parse_table(name, content)
        if table.pop(SEAL, None) != table_digest(table):
            raise self.damage_error(name, "it is not what the run wrote, its SHA-256 is another")
        return table

    def has(self, name: str) -> bool:
        """Return whether a file exists and is recorded."""
        return (self.path / name).is_file() and name in self.digests

    def read(self, name: str) -> bytes:
        """Read a file that was recorded.

        Raises `StoreError` if it is not the one that was written.
        """
        content = self.read_unverified(name)
        self.check_digest(name, content)
        return content

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file that holds a table."""
        return self.parse_table(name, self.read(name))

    def read_facts(self, name: str, kind: type[Facts]) -> Facts:
        """Read a JSON file as an object of a pydantic class."""
        try:
            return kind.model_validate_json(self.read(name))
        except ValidationError as error:
            raise self.damage_error(name, error.errors(include_url=False)[0]["msg"]) from error

    def read_unverified(self, name: str) -> bytes:
        """Read a file without comparing it."""
        try:
            with explain_os_errors(f"{self.path / name}: cannot be read"):
                return read_regular_file(self.path / name)
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                raise self.missing_file_error(name) from None
            raise

    def check_digest(self, name: str, content: bytes) -> None:
        """Raise `StoreError` if a file's content differs from what was written."""
        if self.is_complete and name not in self.digests:
            raise StoreError(
                f"{self.path / name}: is not listed in {MANIFEST}, so it is not of this run: remove it, or restore "
                "the directory"
            )
        found = content_digest(content)
        if self.digests.get(name, found) != found:
            raise self.damage_error(name, "it is not what the run wrote, its SHA-256 is another")

    def parse_table(self, name: str, content: bytes) -> dict[str, Any]:
        """Parse the content of a JSON file that holds a table."""
        if len(content) > MOST_JSON_BYTES:
            raise self.damage_error(name, f"it has more than {MOST_JSON_BYTES:,} bytes")
        try:
            found: dict[str, Any] = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self.damage_error(name, error) from error
        if not isinstance(found, dict):
            raise self.damage_error(name, "not a table")
        return found

    def damage_error(self, name: str, reason: object) -> StoreError:
        """Return the error for a file whose content makes no sense."""
        return StoreError(
            f"{self.path / name}: damaged: {one_line(reason)}: restore the file, or run again with --force"
        )

    def missing_file_error(self, name: str) -> StoreError:
        """Return the error for a file that does not exist."""
        return StoreError(f"{self.path / name}: missing: restore the file, or run again with --force")

    # The record

    @property
    def status(self) -> dict[str, Any]:
        """Return how far the work has come, as `status.json` says."""
        content = self.read_unverified(STATUS)
        found = self.parse_table(STATUS, content).get("format")
        if found != FORMAT:
            raise StoreError(
                f"{self.path}: written in format {str(found)[:40]}, this version of crfl reads format {FORMAT}: use "
                "the version that its environment.json names"
            )
        state = self.parse_table(STATUS, content).get("state")
        if state not in self.states:
            raise self.damage_error(STATUS, f"there is no state {str(state)[:40]!r}")
        return self.parse_sealed(STATUS, content)

    @property
    def manifest(self) -> dict[str, Any]:
        """Return the content of `manifest.json`.

        Raises `StoreError` unless it has the digest in the status.
        """
        content = self.read_unverified(MANIFEST)
        if content_digest(content) != self.status.get("manifest"):
            raise self.damage_error(MANIFEST, f"it is not what the run wrote, its SHA-256 is not that of {STATUS}")
        return self.parse_table(MANIFEST, content)

    @cached_property
    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of every file that belongs here, by name.

        The dictionary is empty for a new directory.
        """
        if not (self.path / STATUS).exists():
            return {}
        status = self.status
        if status["state"] == FINISHED:
            return self.parse_digests(MANIFEST, self.manifest.get("files"))
        return self.parse_digests(STATUS, status.get("files"))

    @cached_property
    def is_complete(self) -> bool:
        """Return whether the work is finished.

        A file that is not listed then does not belong to it.
        """
        return (self.path / STATUS).exists() and bool(self.status["state"] == FINISHED)

    def parse_digests(self, source: str, files: object) -> dict[str, str]:
        """Check the digests that were read from the file `source`.

        All names must stay in the directory.
        """
        if not isinstance(files, dict) or not all(isinstance(value, str) for value in files.values()):
            raise self.damage_error(source, "it lists no files")
        for name in files:
            if not is_name_inside(name):
                raise self.damage_error(source, f"it lists {name[:80]!r}, which is outside of the directory")
        return dict(files)

    def reload_record(self) -> None:
        """Read the record again when it is needed next."""
        for name in ("digests", "is_complete"):
            self.__dict__.pop(name, None)

    def set_state(self, state: str) -> None:
        """Record the state of the work, and every file written so far."""
        self._write_status({"state": state, "files": self.permanent_digests()})

    def record_files(self) -> None:
        """Record the files that were written since the last record.

        A directory without a status needs no record yet.
        """
        if (self.path / STATUS).exists():
            self.set_state(self.status["state"])

    def finish(self, about: Mapping[str, object] | None = None) -> None:
        """Write the manifest: the work is finished.

        The manifest starts with the entries of `about`.
        """
        files = dict(sorted(self.permanent_digests().items()))
        content = JSON.dump_json({**(about or {}), "files": files}, indent=2) + b"\n"
        refuse_links(self.path, MANIFEST)
        replace_file(self.path / MANIFEST, content)
        self._write_status({"state": FINISHED, "manifest": content_digest(content)})

    def permanent_digests(self) -> dict[str, str]:
        """Return the digests of the files that finished work keeps."""
        return self.digests

    def list_foreign_files(self, files: Mapping[str, str]) -> list[str]:
        """List the visible files here that are not among `files`.

        Trackers write such files.
        """
        names = set()
        for file in self.path.rglob("*"):
            parts = file.relative_to(self.path).parts
            is_hidden = any(part.startswith(".") for part in parts)
            if file.is_file() and not is_hidden and parts[0] != self.growing_folder:
                names.add("/".join(parts))
        return sorted(names - files.keys() - {STATUS, MANIFEST})

    def _write_status(self, status: Mapping[str, object]) -> None:
        table = {"format": FORMAT, **status}
        refuse_links(self.path, STATUS)
        replace_file(self.path / STATUS, JSON.dump_json({**table, SEAL: table_digest(table)}, indent=2) + b"\n")

    # The marker, and the files that go with the directory

    def write_marker(self) -> None:
        """Write the marker."""
        self.write_json(MARKER, {"kind": self.kind})

    @property
    def has_marker(self) -> bool:
        """Return whether this is a directory of this kind, in any state."""
        try:
            self._marker_inode = (self.path / MARKER).stat().st_ino
            return self.parse_table(MARKER, self.read_unverified(MARKER)).get("kind") == self.kind
        except (StoreError, OSError):
            return False

    def list_own_files(self) -> list[str]:
        """List the files here whose names the work writes, in order."""
        names = (file.as_posix() for file in files_below(self.path))
        return sorted(name for name in names if self.is_own_name(name))

    def is_own_name(self, name: str) -> bool:
        """Return whether only the work gives a file this name."""
        path = PurePosixPath(name)
        if temporary := TEMPORARY_NAME.fullmatch(path.name):
            name = path.with_name(temporary["name"]).as_posix()
        return name in RECORD_FILES or self.file_names.fullmatch(name) is not None

    def list_deletable_files(self) -> set[str]:
        """Return the files that go when the directory is replaced."""
        return set(self.list_own_files())

    # The lock

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing here.

        The lock ends with the process, however the process ends.
        """
        with explain_os_errors(f"{self.path / LOCK}: cannot be written"):
            descriptor = open_regular(self.path / LOCK, os.O_RDWR | os.O_CREAT)
        with os.fdopen(descriptor, "r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise StoreError(f"{self.path}: another process is writing this run: wait for it to end") from None
                raise StoreError(
                    f"{self.path}: cannot be locked: {error.strerror}: its file system has no locks, choose a place on "
                    "another disk"
                ) from error
            if not self._holds_lock(file):
                raise StoreError(f"{self.path}: another process has replaced this run: see what it did, then try again")
            self.reload_record()  # what was read before the lock may have changed
            for folder in (self.path, *(entry for entry in self.path.iterdir() if is_folder(entry))):
                remove_temporary_files(folder)
            yield

    def _holds_lock(self, lock: TextIO) -> bool:
        """Return whether the lock belongs to the directory here now.

        The marker must belong to it as well, if it was read.
        """
        try:
            if os.fstat(lock.fileno()).st_ino != (self.path / LOCK).stat().st_ino:
                return False
            return self._marker_inode is None or self._marker_inode == (self.path / MARKER).stat().st_ino
        except FileNotFoundError:
            return False


def table_digest(table: Mapping[str, object]) -> str:
    """Return a digest of a JSON table's entries in any order."""
    return content_digest(json.dumps(json.loads(JSON.dump_json(table)), sort_keys=True).encode())


def is_name_inside(name: str) -> bool:
    """Return whether a recorded name is a file below the directory.

    >>> is_name_inside("votes/seed.json"), is_name_inside("../seed.json"), is_name_inside("/etc/passwd")
    (True, False, False)
    """
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def files_below(folder: Path) -> Iterator[Path]:
    """Yield every file in a folder by relative path.

    Links count as files.
    """
    for entry in sorted(folder.iterdir()):
        if is_folder(entry):
            yield from (Path(entry.name) / path for path in files_below(entry))
        else:
            yield Path(entry.name)
