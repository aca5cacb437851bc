"""A folder that keeps a record of its files, so that damage is noticed by whoever reads them.

`status.json` says how far the work has come, and lists the digest of every file that was written so far. When the work
is finished the list moves to `manifest.json`, and the status keeps the digest of that: from then on a file that is not
listed does not belong to the work. Folders of format 1 kept no record; they are read as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from crfl_core.errors import StoreError
from crfl_core.files.folder import JSON, Folder, digest, replace_file

FORMAT = 2
"""Of what this version writes."""

WITHOUT_RECORD = 1
"""The format before, whose folders list nothing."""

STATUS = "status.json"
MANIFEST = "manifest.json"
FINISHED = "finished"


class RecordedFolder(Folder):
    """A folder whose files are compared with what its record says of them."""

    states: ClassVar[tuple[str, ...]] = (FINISHED,)
    """How far the work can have come."""

    appended: ClassVar[str] = "what-if"
    """A folder in it that may grow when the work is finished; what is in there has a record of its own."""

    @property
    def status(self) -> dict[str, Any]:
        """How far the work has come, as it was recorded."""
        status = self.table(STATUS, self.load(STATUS))
        if status.get("format") not in (WITHOUT_RECORD, FORMAT):
            raise StoreError(
                f"{self.path}: written in format {str(status.get('format'))[:40]}, this version of crfl reads formats "
                f"{WITHOUT_RECORD} and {FORMAT}: use the version that its environment.json names"
            )
        if status.get("state") not in self.states:
            raise self.damaged(STATUS, f"there is no state {str(status.get('state'))[:40]!r}")
        return status

    @property
    def manifest(self) -> dict[str, Any]:
        """What manifest.json says, if it is the one that the status was written for."""
        content = self.load(MANIFEST)
        if digest(content) != self.status.get("manifest"):
            raise self.damaged(MANIFEST, f"it is not what the run wrote, its SHA-256 is not that of {STATUS}")
        return self.table(MANIFEST, content)

    @cached_property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of every file that belongs here, by name; nothing for a new folder, and for one of format 1."""
        if not self.keeps_record or not (self.path / STATUS).exists():
            return {}
        status = self.status
        source = STATUS
        if status["state"] == FINISHED:
            status = self.manifest
            source = MANIFEST
        return self.listed(source, status.get("files"))

    def listed(self, source: str, files: object) -> dict[str, str]:
        """A table of digests that was read from a file, if it is one."""
        if not isinstance(files, dict) or not all(isinstance(value, str) for value in files.values()):
            raise self.damaged(source, "it lists no files")
        return dict(files)

    @cached_property
    def keeps_record(self) -> bool:
        """Whether files are listed here: not in format 1."""
        return not (self.path / STATUS).exists() or self.status["format"] != WITHOUT_RECORD

    @cached_property
    def is_sealed(self) -> bool:
        """Whether the list is complete, so that what is not on it does not belong here."""
        return (self.path / STATUS).exists() and self.keeps_record and self.status["state"] == FINISHED

    def forget(self) -> None:
        """Read the record again when it is needed next."""
        for name in ("digests", "keeps_record", "is_sealed"):
            self.__dict__.pop(name, None)

    def has(self, name: str) -> bool:
        """Whether there is such a file and, where a record is kept, whether it is listed."""
        return super().has(name) and (not self.keeps_record or name in self.digests)

    def compare(self, name: str, content: bytes) -> None:
        """Raise `StoreError` if a file is not the one that was written."""
        if self.is_sealed and name not in self.digests:
            raise StoreError(
                f"{self.path / name}: is not listed in {MANIFEST}, so it is not of this run: remove it, or restore "
                "the directory"
            )
        super().compare(name, content)

    def set_state(self, state: str) -> None:
        """Record how far the work has come, and with it everything that was written so far."""
        self._record({"state": state, "files": self.lasting()})

    def keep(self) -> None:
        """What was written since the last record counts from now on; a folder without a status needs no record yet."""
        if (self.path / STATUS).exists():
            self.set_state(self.status["state"])

    def finish(self, about: Mapping[str, object] | None = None) -> None:
        """The work is finished: list everything, and with it what others have put here meanwhile."""
        files = dict(sorted(self.lasting().items()))
        content = JSON.dump_json({**(about or {}), "files": files, "others": self.others(files)}, indent=2) + b"\n"
        replace_file(self.path / MANIFEST, content)
        self._record({"state": FINISHED, "manifest": digest(content)})

    def lasting(self) -> dict[str, str]:
        """The files that belong to the work when it is finished."""
        return self.digests

    def others(self, files: Mapping[str, str]) -> list[str]:
        """Files that are here though nobody listed them, such as those of trackers; hidden ones do not count."""
        found = (file.relative_to(self.path) for file in self.path.rglob("*") if file.is_file())
        shown = (path for path in found if not any(part.startswith(".") for part in path.parts))
        names = {path.as_posix() for path in shown if path.parts[0] != self.appended}
        return sorted(names - files.keys() - {STATUS, MANIFEST})

    def _record(self, status: Mapping[str, object]) -> None:
        replace_file(self.path / STATUS, JSON.dump_json({"format": FORMAT, **status}, indent=2) + b"\n")
