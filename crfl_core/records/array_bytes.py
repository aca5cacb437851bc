"""Arrays and tensors as bytes, a few megabytes at a time: for files and for digests."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from crfl_core.files.feature_cache import BYTES_AT_ONCE
from crfl_core.records.input_rows import ByteRows, Rows

if TYPE_CHECKING:
    from crfl_core.records.round import State


def array_blocks(shape: tuple[int, ...], arrays: Iterable[NDArray[np.generic]]) -> Iterator[bytes]:
    """Yield the content of a NumPy file, a few megabytes at once.

    The file holds an array of this shape.
    """
    for place, array in enumerate(arrays):
        if not place:
            beginning = io.BytesIO()
            header = {"descr": array.dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(beginning, header)
            yield beginning.getvalue()
        yield from byte_blocks(array)


def byte_blocks(array: NDArray[np.generic]) -> Iterator[bytes]:
    """Yield the bytes of an array, a few megabytes at a time."""
    flat = np.ascontiguousarray(array).reshape(-1)
    step = max(1, BYTES_AT_ONCE // flat.itemsize)
    for first in range(0, len(flat), step):
        yield flat[first : first + step].tobytes()


def digest_of(*parts: Rows | State | str) -> str:
    """Return a digest of texts, tensors, bytes and states, in this order."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(f"text {len(part)} {part}".encode())
        elif isinstance(part, torch.Tensor):
            array = part.cpu().numpy()
            digest.update(f"tensor {array.dtype.str} {array.shape}".encode())
            for block in byte_blocks(array):
                digest.update(block)
        elif isinstance(part, ByteRows):
            digest.update(digest_of(part.raw, part.values).encode())
        else:
            for name in sorted(part):
                digest.update(digest_of(name, part[name]).encode())
    return digest.hexdigest()
