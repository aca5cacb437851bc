"""Whether a plugin has changed what it was given. Nobody else would notice: the core hands out what it works with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crfl_core.data import Batches, FederatedData
from crfl_core.errors import PluginFailure
from crfl_core.kinds.tracker import RunContext
from crfl_core.knowledge import Known, Observed
from crfl_core.updates import Clients, ClientUpdates, Round, RoundFacts, RuleResult, TrainingTask

if TYPE_CHECKING:
    from torch import Tensor

GOLDEN = 0.6180339887498949


class Touched(PluginFailure):
    """A plugin has changed what it was given, so the run cannot be trusted, not even without that plugin."""


@contextmanager
def untouched(who: str, *given: object) -> Iterator[None]:
    """Raise `Touched` if anything in containers of the core, or a tensor, is another afterwards.

    Contents are compared, not the counters of PyTorch: writing through `numpy()` or `.data` counts nothing. Only what
    a whole run shares is too large for that, and counted.
    """
    tensors, columns, shared = [*tensors_in(given)], [*columns_in(given)], [*shared_in(given)]
    marks, copies = [fingerprint(tensor) for tensor in tensors], [column.copy() for column in columns]
    versions = [tensor._version for tensor in shared]
    yield
    same = all(map(np.array_equal, columns, copies)) and versions == [tensor._version for tensor in shared]
    if not same or any((fingerprint(tensor) != mark).any() for tensor, mark in zip(tensors, marks, strict=True)):
        raise Touched(f"{who} changed what it was given: work on a copy")


def fingerprint(tensor: Tensor) -> NDArray[np.float64]:
    """A number for each row that changes with any of its entries: in one pass, and without a copy."""
    import torch

    flat = tensor.detach()
    flat = flat.reshape(-1, flat.shape[-1]) if flat.ndim > 1 else flat.reshape(1, -1)
    flat = flat if flat.is_floating_point() else flat.double()
    spread = torch.arange(1, flat.shape[1] + 1, dtype=torch.float64).mul_(GOLDEN).frac_().add_(0.5)
    marks: NDArray[np.float64] = (flat @ spread.to(flat)).double().cpu().numpy()
    return np.nan_to_num(marks)


def tensors_in(given: tuple[object, ...]) -> Iterator[Tensor]:
    """Every tensor that a plugin could write to."""
    import torch

    for one in given:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, Mapping):
            yield from tensors_in(tuple(one.values()))
        elif isinstance(one, ClientUpdates):
            yield from (one.values, one.round.start)
        elif isinstance(one, Round):
            yield one.start
        elif isinstance(one, RuleResult):
            yield one.update
        elif isinstance(one, TrainingTask):
            yield from (one.starts, *(one.attack_state or {}).values())
        elif isinstance(one, Known):
            yield from (one.own, one.weights, one.round.start, one.honest.values)
        elif isinstance(one, Observed):
            yield from (one.round.start, one.following, one.submitted)
        elif isinstance(one, Batches):
            yield from (one.x, one.y, one.sizes)
        elif isinstance(one, FederatedData):
            yield from (one.x, one.y, one.test_x, one.test_y)


def shared_in(given: tuple[object, ...]) -> Iterator[Tensor]:
    """The data of a run, as its hooks see them."""
    for one in given:
        if isinstance(one, RunContext):
            yield from (one.features, *tensors_in((one.data,)))
        elif isinstance(one, Known):
            yield one.features


def columns_in(given: tuple[object, ...]) -> Iterator[NDArray[np.generic]]:
    """Every array that a plugin could write to."""
    for one in given:
        if isinstance(one, ClientUpdates | Observed):
            yield from vars(one.round.clients).values()
        elif isinstance(one, Known):
            yield from (*vars(one.round.clients).values(), *vars(one.honest.round.clients).values())
        elif isinstance(one, RoundFacts | TrainingTask):
            yield from vars(one.clients).values()
        elif isinstance(one, Clients):
            yield from vars(one).values()
