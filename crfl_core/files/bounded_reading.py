"""Reading of files that may come from another person: regular files only, and never more than fits into memory."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from crfl_core import resource_limits

MOST_TEXT_BYTES = 2**24
"""Bytes of the largest config or receipt."""
UNKNOWN_MEMORY_BYTES = 2**36
"""Assumed free memory where the system does not tell."""


def read_regular_file(path: Path, most: int | None = None) -> bytes:
    """Read a file of at most this many bytes.

    By default it may be as large as what fits into free memory. Raises `OSError` for larger files, and for FIFOs,
    devices and everything else that is not a regular file.
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
    """Return how many bytes this process may still allocate.

    A text always fits.
    """
    headroom = resource_limits.free_memory()
    return UNKNOWN_MEMORY_BYTES if headroom is None else max(headroom.left, MOST_TEXT_BYTES)


def read_arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """Read the arrays of an npz file.

    Raises `ValueError` before it allocates more than is free. Pickled objects are refused.
    """
    check_unpacked_size(content)
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return dict(file)


def check_unpacked_size(content: bytes) -> None:
    """Raise `ValueError` if an npz file would unfold too far.

    Its arrays must fit into memory, and must not be larger than their members. A few kilobytes may unfold to gigabytes,
    and the header of an array may claim any shape.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        total = sum(member.file_size for member in members)
        if total > (limit := free_bytes()):
            raise ValueError(f"its arrays unfold to {total:,} bytes, and {limit:,} are free")
        for member in members:
            with archive.open(member) as stream:
                if count_claimed_bytes(stream) > member.file_size:
                    raise ValueError(f"{member.filename} claims more numbers than it holds")


def count_claimed_bytes(stream: Any) -> int:
    """Count the bytes that the header of an npy file claims.

    They are those of its array.
    """
    version = npy_format.read_magic(stream)
    read_header = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    count = 1
    for length in shape:
        count *= int(length)
    return count * dtype.itemsize
