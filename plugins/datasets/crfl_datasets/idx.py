"""The IDX format of MNIST and related datasets: parsed once, then mapped from the user's cache.

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
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crfl_core.extend import Data, DataError, DataFile, Domain, FileDataset, cache_dir, may_write_caches

UNSIGNED_BYTES = 0x08
GZIP = b"\x1f\x8b"
BYTES_PER_READ = 1 << 22
REMEDY = "check it with `crfl data verify`, and fetch or copy it again"

Bytes = NDArray[np.uint8]


class IdxFile:
    """Open IDX file of unsigned bytes: its shape, and its items in blocks.

    `turned` swaps rows and columns.
    """

    def __init__(self, path: Path, stream: BinaryIO, dimensions: int, *, turned: bool) -> None:
        self._path = path
        self._stream = stream
        self._turned = turned
        magic = self._read(4, "in the header")
        expected = bytes([0, 0, UNSIGNED_BYTES, dimensions])
        if magic != expected:
            raise DataError(
                f"{path}: byte 0: the magic number is {magic.hex()}, not {expected.hex()}, so this is not an IDX file "
                f"of bytes with {dimensions} dimensions: {REMEDY}"
            )
        sizes = np.frombuffer(self._read(4 * dimensions, "in the header"), ">u4")
        self._count, *self._item = map(int, sizes)
        self.shape = (self._count, *(reversed(self._item) if turned else self._item))
        if 0 in self.shape:
            raise DataError(f"{path}: byte 4: there is nothing in it, the header says {self.shape}: {REMEDY}")

    def blocks(self) -> Iterator[Bytes]:
        """Yield the items in order.

        Raises `DataError` if there are fewer or more than the header says.
        """
        count = self._count
        size = math.prod(self._item)
        step = max(1, BYTES_PER_READ // size)
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
def open_idx(path: Path, dimensions: int, *, turned: bool = False) -> Iterator[IdxFile]:
    """Open an IDX file, packed or not."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    with raw:
        packed = raw.read(len(GZIP)) == GZIP
        raw.seek(0)
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        yield IdxFile(path, stream, dimensions, turned=turned)  # type: ignore[arg-type]  # it is a binary stream


def read_labels(path: Path) -> Bytes:
    """Read the labels of an IDX file of one dimension."""
    with open_idx(path, 1) as file:
        return np.concatenate(list(file.blocks()))


def read_images(path: Path, *, turned: bool = False) -> Bytes:
    """Read the images of an IDX file, (count, height, width).

    They are mapped from the cache. The first reader writes the cache. If it cannot be written, images are read into
    memory.
    """
    cached = cache_file(path, turned=turned)
    found = map_cache(cached)
    if found is None:
        with suppress(OSError):
            write_cache(cached, path, turned=turned)
            found = map_cache(cached)
    if found is None:
        with open_idx(path, 3, turned=turned) as file:
            found = np.concatenate(list(file.blocks()))
    return found


def cache_file(path: Path, *, turned: bool) -> Path:
    """Return the path of a file's cache.

    It changes with the place, the size and the modification time of the file.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    place = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    version = f"{status.st_size:x}-{status.st_mtime_ns:x}{'-turned' if turned else ''}"
    return cache_dir() / "idx" / f"{place}-{version}.npy"


def map_cache(cached: Path) -> Bytes | None:
    """Map the array of a cache file, copied on write.

    The result is None unless the file holds a whole array.
    """
    try:
        array = np.load(cached, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return np.asarray(array) if array.dtype == np.uint8 and array.ndim == 3 else None


def write_cache(cached: Path, path: Path, *, turned: bool) -> None:
    """Write the images of an IDX file to the cache atomically.

    The cache is written as a whole or not at all. The cache of an older version of the file is removed.
    """
    if not may_write_caches():
        raise PermissionError(f"{cached}: a dry run writes nothing")
    cached.parent.mkdir(parents=True, exist_ok=True)
    with (
        open_idx(path, 3, turned=turned) as file,
        tempfile.NamedTemporaryFile(dir=cached.parent, delete=False) as target,
    ):
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


class IdxFileNames(NamedTuple):
    """Names of the four files."""

    train_images: str
    train_labels: str
    test_images: str
    test_labels: str


MNIST_FILE_NAMES = IdxFileNames(
    "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
)
"""As MNIST and the sets that took its place call them."""


class ImageDataset(FileDataset):
    """Grey images in four IDX files, with values 0..255 and an official test set."""

    def read_files(
        self, names: IdxFileNames, class_names: tuple[str, ...], *, first_label: int = 0, turned: bool = False
    ) -> Data:
        """Read the four files.

        With `turned` they hold columns of pixels where others hold rows.
        """
        x, y = read_pair(self.file(names.train_images), self.file(names.train_labels), turned=turned)
        test_x, test_y = read_pair(self.file(names.test_images), self.file(names.test_labels), turned=turned)
        if x.shape[1:] != test_x.shape[1:]:
            found = f"images are {size_text(test_x)}, but those for training are {size_text(x)}"
            raise DataError(f"{self.file(names.test_images)}: {found}: {REMEDY}")
        height, width = x.shape[1:]
        return Data(
            x=x.reshape(len(x), -1),
            y=class_labels(self.file(names.train_labels), y, len(class_names), first_label),
            test_x=test_x.reshape(len(test_x), -1),
            test_y=class_labels(self.file(names.test_labels), test_y, len(class_names), first_label),
            domain=Domain(0.0, 255.0),
            class_names=class_names,
            feature_names=tuple(f"pixel_{row}_{column}" for row in range(height) for column in range(width)),
            image_shape=(height, width),
        )


def read_pair(images: Path, labels: Path, *, turned: bool) -> tuple[Bytes, Bytes]:
    """Read images with their labels."""
    x = read_images(images, turned=turned)
    y = read_labels(labels)
    if len(x) != len(y):
        raise DataError(f"{labels}: has {len(y)} labels, but {images} has {len(x)} images: {REMEDY}")
    return x, y


def class_labels(path: Path, labels: Bytes, count: int, first: int) -> NDArray[np.int64]:
    """Convert labels to classes 0..count-1."""
    found = labels.astype(np.int64) - first
    outside = (found < 0) | (found >= count)
    if outside.any():
        position = int(np.argmax(outside))
        what = f"label {labels[position]} at position {position} is not within {first}..{first + count - 1}"
        raise DataError(f"{path}: {what}: {REMEDY}")
    return found


def size_text(images: Bytes) -> str:
    """Write height and width as text."""
    return " x ".join(map(str, images.shape[1:]))


def make_data_file(name: str, sha256: str, size: int, mirrors: tuple[str, ...]) -> DataFile:
    """Describe a file that several sites offer under one name."""
    return DataFile(name, sha256, size, tuple(mirror + name for mirror in mirrors))
