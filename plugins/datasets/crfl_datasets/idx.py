"""The IDX format of MNIST and its relatives: parsed once, then mapped from the user's cache.

An IDX file is a magic number (two zero bytes, the type of the values, the number of dimensions), the dimensions as
big-endian integers, and the values. Files may be packed with gzip.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from crfl_core.extend import DataError, cache_dir

UNSIGNED_BYTES = 0x08
GZIP = b"\x1f\x8b"
BYTES_AT_ONCE = 1 << 22
REMEDY = "check it with `crfl data verify`, and fetch or copy it again"

Bytes = NDArray[np.uint8]


class IdxFile:
    """An open IDX file of unsigned bytes: its shape, and its items some at a time. `turned` swaps rows and columns."""

    def __init__(self, path: Path, stream: BinaryIO, dimensions: int, *, turned: bool) -> None:
        self._path = path
        self._stream = stream
        self._turned = turned
        magic = self._read(4, "in the header")
        expected = bytes([0, 0, UNSIGNED_BYTES, dimensions])
        if magic != expected:
            raise DataError(
                f"{path}: byte 0: the magic number is {magic.hex()}, not {expected.hex()}, so this is no IDX file of "
                f"bytes with {dimensions} dimensions: {REMEDY}"
            )
        sizes = np.frombuffer(self._read(4 * dimensions, "in the header"), ">u4")
        self._count, *self._item = map(int, sizes)
        self.shape = (self._count, *(reversed(self._item) if turned else self._item))
        if 0 in self.shape:
            raise DataError(f"{path}: byte 4: there is nothing in it, the header says {self.shape}: {REMEDY}")

    def blocks(self) -> Iterator[Bytes]:
        """The items in order. Raises `DataError` if there are fewer or more than the header says."""
        count = self._count
        size = math.prod(self._item)
        step = max(1, BYTES_AT_ONCE // size)
        for first in range(0, count, step):
            items = min(step, count - first)
            content = self._read(items * size, f"between items {first} and {first + items} of {count}")
            block = np.frombuffer(content, np.uint8).reshape(items, *self._item)
            yield block.swapaxes(1, 2) if self._turned else block
        if self._read(1, "at the end", exactly=False):  # also makes gzip compare its checksum
            raise DataError(f"{self._path}: there are more bytes than its header says, {count} items: {REMEDY}")

    def _read(self, size: int, where: str, *, exactly: bool = True) -> bytes:
        try:
            content = self._stream.read(size)
        except (EOFError, OSError, zlib.error, MemoryError, OverflowError) as error:  # a header may promise anything
            raise DataError(f"{self._path}: damaged or truncated {where}: {error}: {REMEDY}") from error
        if exactly and len(content) < size:
            raise DataError(f"{self._path}: truncated {where}: {size - len(content)} bytes are missing: {REMEDY}")
        return content


@contextmanager
def opened(path: Path, dimensions: int, *, turned: bool = False) -> Iterator[IdxFile]:
    """An IDX file, packed or not."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    with raw:
        packed = raw.read(len(GZIP)) == GZIP
        raw.seek(0)
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        yield IdxFile(path, stream, dimensions, turned=turned)  # type: ignore[arg-type]  # a binary stream all the same


def read_labels(path: Path) -> Bytes:
    """The labels in an IDX file of one dimension."""
    with opened(path, 1) as file:
        return np.concatenate(list(file.blocks()))


def read_images(path: Path, *, turned: bool = False) -> Bytes:
    """The images in an IDX file, (count, height, width): mapped from the cache, where they are put when first read.

    If the cache cannot be written they are read into memory.
    """
    cached = cache_file(path, turned=turned)
    found = mapped(cached)
    if found is None:
        with suppress(OSError):
            store(cached, path, turned=turned)
            found = mapped(cached)
    if found is None:
        with opened(path, 3, turned=turned) as file:
            found = np.concatenate(list(file.blocks()))
    return found


def cache_file(path: Path, *, turned: bool) -> Path:
    """Where the images of a file are cached: the name changes with the file's place, size and time of change."""
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    place = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    version = f"{status.st_size:x}-{status.st_mtime_ns:x}{'-turned' if turned else ''}"
    return cache_dir() / "idx" / f"{place}-{version}.npy"


def mapped(cached: Path) -> Bytes | None:
    """The array in a cache file; None if there is no such file, or not a whole one. Who writes to it changes a copy."""
    try:
        array = np.load(cached, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return np.asarray(array) if array.dtype == np.uint8 and array.ndim == 3 else None


def store(cached: Path, path: Path, *, turned: bool) -> None:
    """Write the images of an IDX file as a whole or not at all, and drop what was cached of an older version of it."""
    cached.parent.mkdir(parents=True, exist_ok=True)
    with opened(path, 3, turned=turned) as file, tempfile.NamedTemporaryFile(dir=cached.parent, delete=False) as target:
        try:
            header = {"descr": "|u1", "fortran_order": False, "shape": file.shape}
            np.lib.format.write_array_header_1_0(target, header)
            for block in file.blocks():
                target.write(block.tobytes())
            target.flush()
            os.fsync(target.fileno())
            Path(target.name).replace(cached)
        except BaseException:
            Path(target.name).unlink()
            raise
    for old in cached.parent.glob(f"{cached.name.partition('-')[0]}-*.npy"):
        if old != cached and old.stem.endswith("-turned") == turned:
            with suppress(OSError):
                old.unlink()
