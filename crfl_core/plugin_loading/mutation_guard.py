"""Guard of the inputs of plugins: the core hands out the arrays that it works with, so it compares them afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import PluginFailure
from crfl_core.records.attacker_view import AttackerView
from crfl_core.records.random_streams import Streams
from crfl_core.records.run_context import RunContext

if TYPE_CHECKING:
    from torch import Tensor

GOLDEN_RATIO = 0.6180339887498949
CACHED_FACTORS = 2**20
"""Longest row, in numbers, whose mixing factors are kept for the next call; also the numbers converted at a time."""


class InputsChanged(PluginFailure):
    """Error about a plugin that changed its inputs: the run cannot be trusted, not even without that plugin."""


@contextmanager
def guard_inputs(who: object, *given: object) -> Iterator[None]:
    """Raise `InputsChanged` if a tensor or array among the inputs differs afterwards.

    Contents are compared, because PyTorch's version counters miss writes through `numpy()` or `.data`. Only arrays that
    a whole run shares are too large to compare; for them the counters decide. `who` begins the message.
    """
    import torch

    shared = [tensor for one in given for tensor in collect_arrays(one) if isinstance(tensor, torch.Tensor)]
    seen = {id(tensor) for tensor in shared}
    found = [leaf for one in given for leaf in arrays_in(one) if id(leaf) not in seen]
    tensors = [leaf for leaf in found if isinstance(leaf, torch.Tensor)]
    columns = [leaf for leaf in found if isinstance(leaf, np.ndarray)]
    marks = [fingerprint(tensor) for tensor in tensors]
    copies = [column.copy() for column in columns]
    versions = [tensor._version for tensor in shared]
    yield
    same = all(map(equal_arrays, columns, copies)) and versions == [tensor._version for tensor in shared]
    if not same or any((fingerprint(tensor) != mark).any() for tensor, mark in zip(tensors, marks, strict=True)):
        raise InputsChanged(f"{who} changed what it was given: work on a copy")


def equal_arrays(one: NDArray[np.generic], other: NDArray[np.generic]) -> bool:
    """Return whether two arrays have the same content; NaN equals NaN."""
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def fingerprint(tensor: Tensor) -> NDArray[np.float64]:
    """Return a number for each row that depends on its entries.

    It changes with any of them. One pass computes it, without a full copy.
    """
    import torch

    flat = tensor.detach()
    flat = flat.reshape(-1, flat.shape[-1]) if flat.ndim > 1 else flat.reshape(1, -1)
    factors_for = mixing_factors if flat.shape[1] <= CACHED_FACTORS else mixing_factors.__wrapped__
    if flat.is_floating_point():
        found: NDArray[np.float64] = (flat @ factors_for(flat.shape[1]).to(flat)).double().cpu().numpy()
        return np.nan_to_num(found)
    factors = factors_for(flat.shape[1]).to(flat.device)
    marks = torch.empty(len(flat), dtype=torch.float64)
    step = max(1, CACHED_FACTORS // max(1, flat.shape[1]))
    room = factors.new_empty(min(step, len(flat)), flat.shape[1])  # one for all: small results between fresh ones stay
    for first in range(0, len(flat), step):
        piece = flat[first : first + step]
        marks[first : first + step] = room[: len(piece)].copy_(piece) @ factors
    return marks.numpy()


@lru_cache(maxsize=4)
def mixing_factors(length: int) -> Tensor:
    """Return distinct factors around 1 for the entries of a row."""
    import torch

    return torch.arange(1, length + 1, dtype=torch.float64).mul_(GOLDEN_RATIO).frac_().add_(0.5)


def arrays_in(one: object) -> Iterator[object]:
    """Yield every tensor and array in a container of the core.

    Nested containers are searched, too.
    """
    if is_dataclass(one) and not isinstance(one, Streams):
        for field in fields(one):
            yield from arrays_in(vars(one)[field.name])  # what is stored, not what a read would compute
    elif isinstance(one, Mapping):
        for value in one.values():
            yield from arrays_in(value)
    else:
        yield one


def collect_arrays(one: object) -> Iterator[object]:
    """Yield the arrays that a whole run shares.

    They are the data as hooks see them, and the inputs that attackers know.
    """
    if isinstance(one, RunContext):
        yield from (*arrays_in(one.feature_rows), *arrays_in(one.data))
    elif isinstance(one, AttackerView):
        yield one.features
