"""Data as it flows from a dataset to the clients: plain, read-only containers."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core.records.input_rows import Rows

DOUBLE_PRECISION_NUMBERS_AT_ONCE = 65536
"""Data may be larger than memory in double precision: what needs it works on this many numbers at a time."""


@dataclass(frozen=True)
class Domain:
    """Box of valid inputs, after scaling, to which attacks are clamped. Infinite if nothing is known."""

    low: float = float("-inf")
    high: float = float("inf")

    def norm_bound(self, inputs: int) -> float:
        """Return the largest Euclidean norm of an input with `inputs` features.

        >>> Domain(0.0, 1.0).norm_bound(784)
        28.0
        """
        return float(max(abs(self.low), abs(self.high)) * inputs**0.5)

    def outside(self, inputs: NDArray[np.generic]) -> NDArray[np.bool_]:
        """Return which inputs lie outside the domain, or are not finite.

        They are compared in single precision.

        >>> Domain(0.0, 0.1).outside(np.array([0.1, 0.2, np.nan])).tolist()
        [False, True, True]
        """
        with np.errstate(over="ignore"):
            single = inputs.astype(np.float32, copy=False)
            low = np.float32(self.low)
            high = np.float32(self.high)
        return ~(np.isfinite(single) & (low <= single) & (single <= high))


REMOTE_ROW = np.iinfo(np.int64).min
"""The row number of every sample that is not here: nothing can be found under it."""


def remote_rows(samples: int) -> NDArray[np.int64]:
    """Return the rows of a client whose samples are elsewhere.

    The rows take no memory.

    >>> rows = remote_rows(1_000_000_000)
    >>> len(rows), is_local(rows)
    (1000000000, False)
    """
    return np.broadcast_to(np.int64(REMOTE_ROW), (samples,))


def is_local(rows: NDArray[np.int64]) -> bool:
    """Ask whether a client's samples are on this machine.

    Only then can they be read.
    """
    return len(rows) == 0 or int(rows[0]) != REMOTE_ROW


def partition_digest(partition: Sequence[NDArray[np.int64]]) -> str:
    """Return the SHA-256 of a partition.

    It covers every client's number of rows, then the rows themselves, as 8 bytes each.
    """
    digest = hashlib.sha256()
    for rows in partition:
        digest.update(np.array([len(rows), *rows], "<i8").tobytes())
    return digest.hexdigest()


CLAMPED = ("minmax", "declared")
"""Kinds of scaling beyond whose range inputs are cut off."""


@dataclass(frozen=True)
class Scaling:
    """Affine map from raw to scaled inputs, `scaled = (raw - shift) * factor`.

    `fitted` says whether it was fitted to training data. `minmax` and `declared` also clamp to [0, 1]: new inputs may
    lie outside the range of the training data, or outside the range declared for each feature.
    """

    kind: str = "none"
    shift: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))
    factor: NDArray[np.float64] = field(default_factory=lambda: np.ones(1))
    fitted: bool = False

    def apply(self, raw: NDArray[np.generic]) -> NDArray[np.float32]:
        """Scale inputs in float64, and return them in float32.

        Return the raw array itself if nothing has to be done.
        """
        if self.kind == "none" and raw.dtype == np.float32 and raw.flags.writeable:
            return raw.view(np.float32)
        scaled = np.empty(raw.shape, np.float32)
        buffer = np.empty((min(len(raw), rows_at_once(raw)), raw.shape[1]))
        for rows in row_blocks(raw):
            block = np.subtract(raw[rows], self.shift, out=buffer[: len(raw[rows])])
            block *= self.factor
            scaled[rows] = block.clip(0.0, 1.0, out=block) if self.kind in CLAMPED else block
        return scaled


def row_blocks(x: NDArray[np.generic]) -> Iterator[slice]:
    """Yield consecutive rows of a matrix in blocks."""
    step = rows_at_once(x)
    for first in range(0, len(x), step):
        yield slice(first, first + step)


def rows_at_once(x: NDArray[np.generic]) -> int:
    """Return how many rows of a matrix are processed at a time."""
    columns: int = x.shape[1]
    return max(1, DOUBLE_PRECISION_NUMBERS_AT_ONCE // max(1, columns))


class CompactInputs(ABC):
    """Inputs that are kept as bytes, a quarter of the memory of floats or less, and become floats when asked for."""

    @abstractmethod
    def to_floats(self) -> Any:
        """Return all inputs as floats in new memory.

        Every call allocates it again, so the caller may write to it.
        """


def as_floats(inputs: Any) -> Any:
    """Return inputs as floats.

    `CompactInputs` are converted. Anything else is returned as it is.
    """
    return inputs.to_floats() if isinstance(inputs, CompactInputs) else inputs


class InputsField:
    """Field `x` of `Data`: holds an array or `CompactInputs`, and always reads as floats.

    A dataset passes an array, and a partitioner reads one; in between, scaled bytes stay bytes.
    """

    def __get__(self, data: Data | None, owner: type | None = None) -> Any:
        """Return the inputs as floats."""
        return self if data is None else as_floats(data.kept_x)

    def __set__(self, data: Data, inputs: object) -> None:
        """Keep the inputs as they are."""
        vars(data)["x"] = inputs


@dataclass(frozen=True, eq=False)
class ScaledBytes(CompactInputs):
    """Raw inputs that are bytes, (m, features), and a scaling that treats all features alike."""

    raw: NDArray[np.uint8]
    scaling: Scaling

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, rows: NDArray[np.int64] | slice) -> ScaledBytes:
        """Return some of the rows, still as bytes."""
        return ScaledBytes(self.raw[rows], self.scaling)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return (m, features)."""
        return self.raw.shape

    def to_floats(self) -> NDArray[np.float32]:
        """Return the scaled inputs."""
        return self.scaling.apply(self.raw)

    def values(self) -> NDArray[np.float32]:
        """Return what each of the 256 bytes is scaled to."""
        return self.scaling.apply(np.arange(256, dtype=np.uint8)[:, None])[:, 0]


def scale_inputs(raw: NDArray[np.generic], scaling: Scaling) -> Any:
    """Scale inputs, and keep bytes where possible.

    Bytes stay bytes if the scaling is the same for all features.
    """
    if raw.dtype == np.uint8 and scaling.shift.size == scaling.factor.size == 1:
        return ScaledBytes(raw.view(np.uint8), scaling)
    return scaling.apply(raw)


@dataclass(frozen=True)
class Data:
    """A dataset in memory: inputs as rows of features, labels 0..classes-1, and what is known about them.

    Scaled inputs that came as bytes are kept as bytes, and every read of `x` converts them to floats: read it once,
    and take the number of samples from `y`. `kept_x` are the inputs as they are kept.

    `groups` are the natural owners of the training rows (states, writers), 0..g-1; `group_names` may name these.
    `ranges` are the lowest and the highest raw value of every feature, if they are known without looking at any row:
    `scaling = "unit-range"` maps them to [0, 1] and cuts off what lies beyond. `classes_found`: the classes are those
    that occur in the samples, so one label of one client may add a class.
    """

    x: NDArray[np.generic]
    y: NDArray[np.int64]
    test_x: NDArray[np.generic]
    test_y: NDArray[np.int64]
    domain: Domain
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...] = ()
    image_shape: tuple[int, ...] | None = None
    groups: NDArray[np.int64] | None = None
    group_names: tuple[str, ...] = ()
    scaling: Scaling = field(default_factory=Scaling)
    ranges: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    classes_found: bool = False

    @property
    def kept_x(self) -> Any:
        """Return the inputs as they are kept: an array, or `ScaledBytes`."""
        return vars(self)["x"]


setattr(Data, "x", InputsField())  # noqa: B010 - after the decorator, which would take it for a default


@dataclass(frozen=True)
class DataFacts:
    """Facts about inputs that a model needs, before any feature map."""

    inputs: int
    classes: int
    domain: Domain
    image_shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class FederatedData:
    """Scaled data as tensors, and which training rows each client holds; some may hold theirs elsewhere.

    `input_rows` are the training inputs as they are kept: floats, or bytes if they came as bytes. Every read of `x`
    converts all bytes to floats; `x_of` and `x_split` convert no more than some rows at a time.
    """

    input_rows: Rows
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    partition: Sequence[NDArray[np.int64]]
    facts: DataFacts
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...] = ()
    client_names: tuple[str, ...] = ()
    classes_found: bool = False

    @property
    def x(self) -> Tensor:
        """Return all training inputs as floats, (m, features)."""
        floats: Tensor = as_floats(self.input_rows)
        return floats

    @property
    def clients(self) -> int:
        """Return the number of clients in the federation."""
        return len(self.partition)

    @property
    def complete(self) -> bool:
        """Return whether the samples of all clients are here."""
        return all(map(is_local, self.partition))

    def x_of(self, rows: Tensor | slice) -> Tensor:
        """Return some training inputs, (k, features).

        They are those of row numbers, of a mask or of a slice.
        """
        return self.input_rows[rows]

    def x_split(self, rows: int) -> Iterator[Tensor]:
        """Return all training inputs in order, this many rows at a time."""
        return iter(self.input_rows.split(rows))


@dataclass(frozen=True)
class Batches:
    """All local batches of some clients in one round, in scaled input space.

    `x` is (clients, steps, batch, features), `y` is (clients, steps, batch). Only the first `sizes[i, s]` rows
    of a batch are used; the rest is padding, and a size of 0 means that the client makes no such step.
    """

    x: Tensor
    y: Tensor
    sizes: Tensor
    clients: NDArray[np.int64]
    round: int


def natural_owners(data: Data, partition: Sequence[NDArray[np.int64]]) -> NDArray[np.int64] | None:
    """Return the natural owner of each client's data.

    None if there are no owners, or if a client has data of several.
    """
    if data.groups is None:
        return None
    owners = [np.unique(data.groups[rows]) for rows in partition]
    return np.concatenate(owners) if all(len(each) == 1 for each in owners) else None
