"""Reading of npz files that may come from another person: plain arrays, never larger than what is free."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from crfl_core.files.bounded_reading import free_bytes


def read_arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """Read the arrays of an npz file. Raises `ValueError` before it allocates more than is free.

    Pickled objects are refused.
    """
    check_unpacked_size(content)
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return dict(file)


def check_unpacked_size(content: bytes) -> None:
    """Raise `ValueError` if the arrays of an npz file do not fit into memory, or are larger than their members.

    A few kilobytes may unfold to gigabytes, and the header of an array may claim any shape.
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
    """Return how many bytes the header of an npy file says that its array has."""
    version = npy_format.read_magic(stream)
    read_header = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    count = 1
    for length in shape:
        count *= int(length)
    return count * dtype.itemsize
