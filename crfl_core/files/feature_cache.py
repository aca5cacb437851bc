"""Files in the user's cache: whole or not there, and never believed without their checksum."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from crfl_core.files.data_files import cache_dir, may_write_caches

CHECKSUM_BYTES = 32
"""Bytes of the checksum at the end of a file."""
BYTES_AT_ONCE = 2**22
UNFINISHED_PREFIX = ".new-"
"""Prefix of the names of files that are being written."""
MOST_CACHE_BYTES = 12 * 2**30
"""Bytes that the cache may hold; what was not used for longest goes first."""


def cache_path(name: str) -> Path:
    """Return the path of a file of features in the user's cache."""
    return cache_dir() / "features" / name


def write_cache_file(path: Path, blocks: Iterable[bytes]) -> None:
    """Write a file with its checksum.

    Several processes may do so at once. Each writes its own file, and the last one counts. Raises `OSError` where
    nothing can be written, and in a dry run.
    """
    if not may_write_caches():
        raise PermissionError(f"{path}: a dry run writes nothing")
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=UNFINISHED_PREFIX, delete=False) as target:
        try:
            with suppress(OSError):  # where there are no locks, nothing is ever taken for abandoned
                fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for block in blocks:
                digest.update(block)
                target.write(block)
            target.write(digest.digest())
            target.flush()
            os.fsync(target.fileno())
            Path(target.name).replace(path)
        except BaseException:
            Path(target.name).unlink(missing_ok=True)
            raise
    remove_abandoned_files(path.parent)
    evict_oldest(path)


def is_intact(path: Path) -> bool:
    """Return whether a cached file is what was written.

    Mark an intact file as used, and remove a damaged one.
    """
    try:
        with path.open("rb") as file:
            left = path.stat().st_size - CHECKSUM_BYTES
            digest = hashlib.sha256()
            while left > 0 and (block := file.read(min(left, BYTES_AT_ONCE))):
                digest.update(block)
                left -= len(block)
            if left == 0 and file.read() == digest.digest():
                os.utime(path)
                return True
    except OSError:
        return False
    with suppress(OSError):
        path.unlink()
    return False


def remove_abandoned_files(folder: Path) -> None:
    """Remove what killed processes were writing.

    Files that a living process has locked stay.
    """
    for file in folder.glob(f"{UNFINISHED_PREFIX}*"):
        with suppress(OSError), file.open("r+b") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()


def evict_oldest(newest: Path) -> None:
    """Remove the least recently used files until the cache is small enough.

    A process that has mapped a file keeps it.
    """
    with suppress(OSError):
        files = sorted(newest.parent.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
        used = 0
        for file in files:
            used += file.stat().st_size
            if used > MOST_CACHE_BYTES and file != newest:
                file.unlink()
