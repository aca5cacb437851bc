"""Files in the user's cache: whole or not there, and never believed without their checksum."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from crfl_files.published import cache_dir

SEAL = 32
"""Bytes of the checksum at the end of a file."""
BYTES_AT_ONCE = 2**22
KEPT = 12 * 2**30
"""Bytes that the cache may hold; what was not used for longest goes first."""


def cached(name: str) -> Path:
    """Where a file of the feature maps lies in the user's cache."""
    return cache_dir() / "features" / name


def seal(path: Path, blocks: Iterable[bytes]) -> None:
    """Write a file with its checksum. Several processes may do so at once: each writes its own, the last one counts.

    Raises `OSError` where nothing can be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as target:
        try:
            for block in blocks:
                digest.update(block)
                target.write(block)
            target.write(digest.digest())
            target.flush()
            os.fsync(target.fileno())
            Path(target.name).replace(path)
        except BaseException:
            Path(target.name).unlink()
            raise
    make_room(path)


def intact(path: Path) -> bool:
    """Whether there is a file that is what was written; it then counts as used. A damaged one is removed."""
    try:
        with path.open("rb") as file:
            left, digest = path.stat().st_size - SEAL, hashlib.sha256()
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


def make_room(newest: Path) -> None:
    """Remove what was not used for longest until the cache is small enough. Whoever has mapped a file keeps it."""
    with suppress(OSError):
        files = sorted(newest.parent.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
        used = 0
        for file in files:
            used += file.stat().st_size
            if used > KEPT and file != newest:
                file.unlink()
