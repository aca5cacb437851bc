"""Room on disk for numbers that memory has no room for: a file without a name, which is gone with whoever uses it."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

ON_DISK = Path("/var/tmp")
"""Kept on a disk by convention, where `/tmp` may be memory."""


def folder() -> Path:
    """Where temporary files go: `TMPDIR` if it is set, else a folder that is on a disk."""
    usable = "TMPDIR" not in os.environ and os.access(ON_DISK, os.W_OK | os.X_OK)
    return ON_DISK if usable else Path(tempfile.gettempdir())


def space(size: int) -> mmap.mmap:
    """This number of bytes, all of them there: whoever writes to them never finds the disk full. Raises `OSError`."""
    with tempfile.TemporaryFile(dir=folder()) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        return mmap.mmap(file.fileno(), size)
