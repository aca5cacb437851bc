"""Whether a plugin has changed what it was given. Nobody else would notice: the core hands out what it works with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import PluginFailure
from crfl_core.plugin_api.tracker import RunContext
from crfl_core.records.attacker_view import AttackerView
from crfl_core.records.inputs import held
from crfl_core.records.random_streams import Streams

if TYPE_CHECKING:
    from torch import Tensor

GOLDEN = 0.6180339887498949
MOST_KEPT = 2**20
"""How many numbers are kept for the next time."""


class InputsChanged(PluginFailure):
    """A plugin has changed what it was given, so the run cannot be trusted, not even without that plugin."""


@contextmanager
def guard_inputs(who: str, *given: object) -> Iterator[None]:
    """Raise `InputsChanged` if anything in containers of the core, or a tensor, is another afterwards.

    Contents are compared, not the counters of PyTorch: writing through `numpy()` or `.data` counts nothing. Only what
    a whole run shares is too large for that, and counted.
    """
    import torch

    shared = [tensor for one in given for tensor in shared_arrays(one) if isinstance(tensor, torch.Tensor)]
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
    """Whether two arrays have the same content; what is not a number is the same as itself."""
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def fingerprint(tensor: Tensor) -> NDArray[np.float64]:
    """A number for each row that changes with any of its entries: in one pass, and without a copy of all of them."""
    import torch

    flat = tensor.detach()
    flat = flat.reshape(-1, flat.shape[-1]) if flat.ndim > 1 else flat.reshape(1, -1)
    made = mixing_factors if flat.shape[1] <= MOST_KEPT else mixing_factors.__wrapped__
    if flat.is_floating_point():
        found: NDArray[np.float64] = (flat @ made(flat.shape[1]).to(flat)).double().cpu().numpy()
        return np.nan_to_num(found)
    factors = made(flat.shape[1]).to(flat.device)
    marks = torch.empty(len(flat), dtype=torch.float64)
    step = max(1, MOST_KEPT // max(1, flat.shape[1]))
    room = factors.new_empty(min(step, len(flat)), flat.shape[1])  # one for all: small results between fresh ones stay
    for first in range(0, len(flat), step):
        piece = flat[first : first + step]
        marks[first : first + step] = room[: len(piece)].copy_(piece) @ factors
    return marks.numpy()


@lru_cache(maxsize=4)
def mixing_factors(length: int) -> Tensor:
    """Numbers around 1, none of which is like another: what every entry of a row is multiplied by."""
    import torch

    return torch.arange(1, length + 1, dtype=torch.float64).mul_(GOLDEN).frac_().add_(0.5)


def arrays_in(one: object) -> Iterator[object]:
    """Every tensor and array in a container of the core that is handed out, however deep."""
    if is_dataclass(one) and not isinstance(one, Streams):
        for field in fields(one):
            yield from arrays_in(held(one, field.name))  # and not what is made of it for whoever asks
    elif isinstance(one, Mapping):
        for value in one.values():
            yield from arrays_in(value)
    else:
        yield one


def shared_arrays(one: object) -> Iterator[object]:
    """What a whole run shares: the data of the federation, as hooks see them, and inputs that attackers know."""
    if isinstance(one, RunContext):
        yield from (*arrays_in(held(one, "features")), *arrays_in(one.data))
    elif isinstance(one, AttackerView):
        yield one.features
