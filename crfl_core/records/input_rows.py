"""Inputs as they are kept: float tensors, or bytes, which take a quarter of the memory and become floats where used."""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.records.inputs import CompactInputs, ScaledBytes

BYTES = 256
LARGE_PAGE = 2**21
LOOKUP_NUMBERS_AT_ONCE = 2**21
"""Numbers that are looked up in the table together: their indices take as much memory again."""
MOST_KEPT = 2**26
"""Numbers for which a thread keeps memory: 256 MiB in single precision."""


@dataclass(frozen=True, eq=False)
class ByteRows(CompactInputs):
    """Rows of bytes, (m, features), and the number that each of the 256 bytes stands for, (256,).

    What is read of it is what a tensor of these numbers would have, bit for bit.
    """

    raw: Tensor
    values: Tensor

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Return the numbers of some rows, in a tensor of their own."""
        some = self.raw[rows]
        return self.fill(some, self.values.new_empty(some.shape))

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the rows one by one."""
        return (self[row : row + 1][0] for row in range(len(self)))

    @property
    def shape(self) -> torch.Size:
        """Return (m, features)."""
        return self.raw.shape

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of the numbers."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Return the device of the bytes."""
        return self.raw.device

    def to_floats(self) -> Tensor:
        """Return all numbers: four times the memory, or eight in double precision."""
        return self[:]

    def split(self, rows: int) -> Iterator[Tensor]:
        """Yield the numbers of this many rows at a time."""
        return (self[first : first + rows] for first in range(0, len(self), rows))

    def index_select(self, dimension: int, rows: Tensor) -> Tensor:
        """Return the numbers of some rows; the dimension is 0."""
        assert dimension == 0
        return self[rows]

    def fill(self, some: Tensor, out: Tensor) -> Tensor:
        """Write the numbers of some bytes into `out`.

        It has the same shape and is contiguous.
        """
        if self.divisor is not None:
            return divide_bytes(some, self.divisor, out)
        flat = out.view(-1)
        for bytes_, numbers in zip(
            some.reshape(-1).split(LOOKUP_NUMBERS_AT_ONCE), flat.split(LOOKUP_NUMBERS_AT_ONCE), strict=True
        ):
            torch.index_select(self.values, 0, bytes_.int(), out=numbers)
        return out

    @cached_property
    def divisor(self) -> float | None:
        """Return the number by which bytes are divided.

        None if no quotient gives exactly the numbers of the table. Dividing takes half the time. The numbers of pixels
        in [0, 1] are quotients by 255, and those of unscaled bytes by 1.
        """
        largest = float(self.values[-1])
        divisor = float(round((BYTES - 1) / largest)) if largest > 0 else 0.0
        every = torch.arange(BYTES, dtype=torch.uint8, device=self.device)
        same = divisor > 0 and torch.equal(divide_bytes(every, divisor, torch.empty_like(self.values)), self.values)
        return divisor if same else None


def divide_bytes(some: Tensor, divisor: float, out: Tensor) -> Tensor:
    """Divide bytes by a number, in `out`.

    They are copied first, because PyTorch is slow to divide numbers of another type.
    """
    out.copy_(some)
    return out if divisor == 1.0 else out.div_(divisor)


def as_rows(x: NDArray[np.generic] | ScaledBytes, device: torch.device, dtype: torch.dtype) -> Any:
    """Return inputs as a tensor, or as `ByteRows` if they are bytes."""
    if not isinstance(x, ScaledBytes):
        return torch.from_numpy(np.ascontiguousarray(x)).to(device, dtype)
    raw = torch.from_numpy(np.require(x.raw, requirements=["C", "W"]))  # PyTorch knows no read-only tensors
    return ByteRows(raw.to(device), torch.from_numpy(x.values()).to(device, dtype))


Rows = Tensor | ByteRows
"""Inputs as they are kept: floats, or the bytes that they are made of."""


def norms_of(x: Rows) -> NDArray[np.float64]:
    """Return the Euclidean norm of each row, some rows at once.

    Torch first copies them in double precision.
    """
    norms = np.empty(len(x))
    step = max(1, LOOKUP_NUMBERS_AT_ONCE // max(1, x.shape[1]))
    for first in range(0, len(x), step):
        norms[first : first + step] = scaled_norms(x[first : first + step], torch.float64).cpu().numpy()
    return norms


def scaled_norms(rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the Euclidean norm of each row, in `dtype`.

    Squares neither underflow nor overflow. Rows whose squares could are first multiplied by a power of two. The norm of
    a finite row is infinite only if it is beyond the largest number.
    """
    norms: Tensor = torch.linalg.vector_norm(rows, dim=-1, dtype=dtype)
    numbers = torch.finfo(norms.dtype)
    # Between these, the squares that underflow are less than rounding, and none overflows.
    odd = (~((norms > numbers.tiny**0.4) & (norms < numbers.max**0.4))).nonzero(as_tuple=True)
    if odd[0].numel():
        short = rows[odd].to(norms.dtype)
        largest = short.abs().amax(dim=-1, keepdim=True).clamp(numbers.tiny, numbers.max / 2.0)
        power = torch.exp2(torch.floor(torch.log2(largest)))
        norms[odd] = power[..., 0] * torch.linalg.vector_norm(short / power, dim=-1)
    return norms


def allocate(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate memory for this many numbers.

    Many numbers get large pages, because products read those faster.
    """
    length = size * dtype.itemsize
    if device.type != "cpu" or length < 2 * LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=dtype, device=device)
    pages = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype)


class BatchBuffer(threading.local):
    """Memory of a thread into which rows are gathered again and again.

    The first touch of fresh memory costs more than what is put into it.
    """

    def __init__(self) -> None:
        self._room: dict[torch.dtype, Tensor] = {}

    def memory_for(self, dtype: torch.dtype, device: torch.device, shape: tuple[int, ...]) -> Tensor:
        """Return memory for a tensor of this type and shape.

        Its earlier content is lost.
        """
        size = math.prod(shape)
        kept = self._room.get(dtype)
        if size > MOST_KEPT:
            return allocate(size, dtype, device).view(shape)
        if kept is None or kept.device != device or kept.numel() < size:
            self._room[dtype] = kept = allocate(size, dtype, device)
        return kept[:size].view(shape)

    def gather_rows(self, source: Rows, rows: Tensor) -> Tensor:
        """Gather some rows, (..., features), in memory that is used again.

        The next call overwrites them.
        """
        out = self.memory_for(source.dtype, source.device, (*rows.shape, source.shape[1]))
        self.gather(source, rows.flatten(), out.view(-1, source.shape[1]))
        return out

    def gather(self, source: Rows, rows: Tensor, out: Tensor) -> None:
        """Put some rows into `out`, (k, features)."""
        if isinstance(source, Tensor):
            torch.index_select(source, 0, rows, out=out)
            return
        some = self.memory_for(torch.uint8, source.device, tuple(out.shape))
        source.fill(torch.index_select(source.raw, 0, rows, out=some), out)
