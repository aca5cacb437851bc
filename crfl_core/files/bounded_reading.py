"""Reading of files that may come from another person: regular files only, and never more than fits into memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from crfl_core import resource_limits

MOST_TEXT_BYTES = 2**24
"""Bytes of the largest config or receipt."""
UNKNOWN_MEMORY_BYTES = 2**36
"""What is taken for free memory where the system does not tell."""


def read_regular_file(path: Path, most: int | None = None) -> bytes:
    """Read a file of at most this many bytes, by default what fits into free memory.

    Raises `OSError` for larger files, and for FIFOs, devices and everything else that is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        limit = free_bytes() if most is None else most
        if status.st_size > limit:
            raise OSError(f"it has {status.st_size:,} bytes, and at most {limit:,} can be read")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size)
    finally:
        os.close(descriptor)


def free_bytes() -> int:
    """Return how many bytes this process may still allocate; a text always fits."""
    headroom = resource_limits.free_memory()
    return UNKNOWN_MEMORY_BYTES if headroom is None else max(headroom.left, MOST_TEXT_BYTES)
