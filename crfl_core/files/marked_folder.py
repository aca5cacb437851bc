"""A folder that says what it is and who made it, and that one process at a time writes to."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, TextIO

from crfl_core.errors import StoreError
from crfl_core.files.atomic_files import LOCK
from crfl_core.files.folder import refusals_of_the_system
from crfl_core.files.ownership import is_sealed_here, seal
from crfl_core.files.recorded_folder import MANIFEST, STATUS, RecordedFolder

MARKER = "crfl.json"
REPLACED = ".replaced"
"""Marks a folder that was set aside to be replaced."""

WRITTEN_HERE = (MARKER, LOCK, REPLACED, STATUS, MANIFEST, ".*.tmp", "*/.*.tmp", f".*/{LOCK}")
"""What is written by the code of this package, as patterns."""


class MarkedFolder(RecordedFolder):
    """A folder that is told from others by its marker, `crfl.json`. Reading changes nothing; writing needs the lock."""

    kind: ClassVar[str]
    """What the marker says it is."""

    sealed_file: ClassVar[str]
    """The file that decides whose code runs: the marker holds a seal under it, which only its maker can write."""

    patterns: ClassVar[tuple[str, ...]] = ()
    """What the work writes."""

    always: ClassVar[tuple[str, ...]] = ()
    """Files by which a folder of format 1 is told, which had no marker."""

    _seen: int | None = None  # which marker was found

    def mark(self, *, mine: bool = True) -> None:
        """Say what this is and, if it is `mine`, that this installation made it with the sealed file as it is."""
        made_by = seal(self.read(self.sealed_file)) if mine else ""
        self.write_json(MARKER, {"kind": self.kind, "made_by": made_by})

    @property
    def is_marked(self) -> bool:
        """Whether this is such a folder, whatever state it is in."""
        try:
            if (self.path / MARKER).exists():
                self._seen = (self.path / MARKER).stat().st_ino
                return self.table(MARKER, self.load(MARKER)).get("kind") == self.kind
            return not self.keeps_record and all((self.path / name).is_file() for name in self.always)
        except (StoreError, OSError):
            return False

    @property
    def is_made_by_others(self) -> bool:
        """Whether another installation made this, or somebody changed the sealed file since."""
        try:
            made_by = self.table(MARKER, self.load(MARKER)).get("made_by")
            return not is_sealed_here(self.load(self.sealed_file), made_by)
        except StoreError:
            return True

    def own_files(self) -> list[str]:
        """The files here that have a name under which the work writes, in order."""
        found = {file for pattern in (*WRITTEN_HERE, *self.patterns) for file in self.path.glob(pattern)}
        return sorted(file.relative_to(self.path).as_posix() for file in found if file.is_file())

    def deletable(self) -> set[str]:
        """The files that go when the folder is replaced."""
        return set(self.own_files())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing here. The lock ends with the process, however it ends."""
        with refusals_of_the_system(f"{self.path / LOCK}: cannot be written"):
            file = (self.path / LOCK).open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise StoreError(f"{self.path}: another process is writing this run: wait for it to end") from None
                raise StoreError(
                    f"{self.path}: cannot be locked: {error.strerror}: its file system has no locks, choose a place on "
                    "another disk"
                ) from error
            if not self._is_still(file):
                raise StoreError(f"{self.path}: another process has replaced this run: see what it did, then try again")
            self.forget()  # what was read before the lock may have changed
            yield

    def _is_still(self, lock: TextIO) -> bool:
        """Whether the lock, and the marker if it was looked at, are those of the folder that is here now."""
        try:
            marked = self._seen is None or self._seen == (self.path / MARKER).stat().st_ino
            return marked and os.fstat(lock.fileno()).st_ino == (self.path / LOCK).stat().st_ino
        except FileNotFoundError:
            return False
