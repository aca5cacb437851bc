"""A folder of plain files: written whole or not at all, known by their digests, compared with them when read."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from crfl_core.errors import StoreError

Facts = TypeVar("Facts", bound=BaseModel)
JSON = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="strings"))
LONGEST_REASON = 200

REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EROFS: "choose a place that can be written to",
    errno.EACCES: "change its permissions, or choose another place",
    errno.EPERM: "change its permissions, or choose another place",
    errno.EFBIG: "raise the limit of the size of files (`ulimit -f`)",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENFILE: "close other programs",
    errno.ENAMETOOLONG: "choose a shorter name",
}
"""What helps against an error of the operating system."""


def digest(content: bytes) -> str:
    """The SHA-256 of some bytes, in hexadecimal digits."""
    return sha256(content).hexdigest()


def one_line(reason: object) -> str:
    """A reason as part of a sentence: one line, and no more than a line.

    >>> one_line("bad value\\n" + 1000 * "x")[:14]
    'bad value xxxx'
    """
    text = " ".join(str(reason).split())
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]} ..."


@contextmanager
def refusals_of_the_system(what: str) -> Iterator[None]:
    """Say in a sentence what the operating system refused, and what helps: `what` names the file and the deed."""
    try:
        yield
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0)
        raise StoreError(f"{what}: {error.strerror or error}{f': {remedy}' if remedy else ''}") from error


def replace_file(path: Path, content: bytes) -> None:
    """The whole new content or the whole old one, whatever happens in between."""
    temporary = path.with_name(f".{path.name}.tmp")
    with refusals_of_the_system(f"{path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):  # half a file would take the room that a full disk has not
                temporary.unlink()
            raise


class Folder:
    """The files below a path. Whatever cannot be read or written is a `StoreError` that names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of every file that belongs here, by name: what was written, and what a record says was."""
        return {}

    def write(self, name: str, content: bytes) -> None:
        """The whole new content or the whole old one, whatever happens in between."""
        replace_file(self.path / name, content)
        self.digests[name] = digest(content)

    def write_json(self, name: str, content: object) -> None:
        """A JSON file; infinities are written as strings."""
        self.write(name, JSON.dump_json(content, indent=2) + b"\n")

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return (self.path / name).is_file()

    def load(self, name: str) -> bytes:
        """The content of a file, whatever it is."""
        try:
            with refusals_of_the_system(f"{self.path / name}: cannot be read"):
                return (self.path / name).read_bytes()
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                raise self.missing(name) from None
            raise

    def read(self, name: str) -> bytes:
        """The content of a file. Raises `StoreError` if it is not the one that was written."""
        content = self.load(name)
        self.compare(name, content)
        return content

    def compare(self, name: str, content: bytes) -> None:
        """Raise `StoreError` if the content of a file is not the one that was written."""
        if self.digests.get(name, expected := digest(content)) != expected:
            raise self.damaged(name, "it is not what the run wrote, its SHA-256 is another")

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file that holds a table."""
        return self.table(name, self.read(name))

    def table(self, name: str, content: bytes) -> dict[str, Any]:
        """The content of a JSON file that holds a table."""
        try:
            found: dict[str, Any] = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self.damaged(name, error) from error
        if not isinstance(found, dict):
            raise self.damaged(name, "not a table")
        return found

    def read_facts(self, name: str, kind: type[Facts]) -> Facts:
        """A JSON file as an object of a class."""
        try:
            return kind.model_validate_json(self.read(name))
        except ValidationError as error:
            raise self.damaged(name, error.errors(include_url=False)[0]["msg"]) from error

    def damaged(self, name: str, reason: object) -> StoreError:
        """The error for a file whose content makes no sense."""
        return StoreError(
            f"{self.path / name}: damaged: {one_line(reason)}: restore the file, or run again with --force"
        )

    def missing(self, name: str) -> StoreError:
        """The error for a file that is not there."""
        return StoreError(f"{self.path / name}: missing: restore the file, or run again with --force")
