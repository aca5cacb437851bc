"""The updates of a round that somebody must see all at once: where they lie, how often, and whether they fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from crfl_core import resource_limits
from crfl_core.errors import ConfigError, RunError
from crfl_core.plugin_api.aggregator import AggregationStep, CapStage, Stage
from crfl_core.training import spill

SHARE = 4
"""Updates that would take more than this part of the memory that is left lie in a file."""


class Held(NamedTuple):
    """What a round keeps of its updates: `copies` of all in memory, and whether the products of all pairs are there."""

    copies: int
    products: bool

    def bytes_of(self, clients: int, parameters: int, itemsize: int) -> int:
        """The memory that this takes, at least."""
        return self.copies * clients * parameters * itemsize + self.products * 8 * clients**2


def held_at_once(steps: Sequence[AggregationStep], *, streams: bool, crafts: bool) -> Held:
    """What a chain keeps in memory; `crafts`: attackers see the others' updates. One that `streams` keeps nothing.

    Updates may lie in a file if no step but caps makes others of them, and whoever looks at them reads them in blocks.
    """
    if streams and not crafts:
        return Held(0, products=False)
    made = sum(isinstance(step, Stage) and not isinstance(step, CapStage) for step in steps)
    looked = 2 if any(step.depends == "all" and step.works_on == "updates" for step in steps) else 0
    return Held(made + looked + 2 * crafts, products=any(step.works_on == "products" for step in steps))


def check_held(steps: Sequence[AggregationStep], held: Held, clients: int, parameters: int, itemsize: int) -> None:
    """Raise `ConfigError` if the updates of a round cannot fit, with what they need and what there is."""
    needed = held.bytes_of(clients, parameters, itemsize)
    left = resource_limits.memory_left()
    if left is not None and needed > left.left:
        rule = " + ".join(step.configured_as for step in steps)
        raise ConfigError(
            f"{rule} must see the updates of all {clients:,} participants at once: with {parameters:,} parameters they "
            f"take {needed / 1e9:,.1f} GB, and {left.left / 1e9:,.1f} GB are left ({left.limit}): lower "
            "training.participation, or add updates up as they come, by a mean behind stages that cap each of them",
            key="aggregation",
        )


def new_rows(like: Tensor, *shape: int) -> Tensor:
    """Room for updates, in memory or, if they take much of it, in a file that is mapped to it: that changes no bit."""
    size = math.prod(shape) * like.element_size()
    left = resource_limits.memory_left()
    if like.device.type != "cpu" or left is None or size <= left.left // SHARE:
        return like.new_empty(shape)
    try:
        return torch.frombuffer(spill.space(size), dtype=like.dtype).view(shape)
    except OSError as error:
        raise RunError(
            f"the updates of a round take {size / 1e9:,.1f} GB, memory has {left.left / 1e9:,.1f} GB left, and they "
            f"cannot be put into {spill.folder()} ({error.strerror}): set TMPDIR to a folder on a disk with room, or "
            "lower training.participation"
        ) from error


def copied(rows: Tensor) -> Tensor:
    """The same updates in room of their own."""
    return new_rows(rows, *rows.shape).copy_(rows)
