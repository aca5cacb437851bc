"""Trackers: plugins that watch a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crfl_interface.data import FederatedData
from crfl_interface.kinds.model import BoundModel
from crfl_interface.kinds.plugin import Plugin

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RunContext:
    """What the hooks of a run may look at. `resumed_from` is the last finished round, 0 for a new run.

    `features` are the training inputs `data.x` as the model sees them, behind its feature maps.
    """

    name: str
    path: Path
    rounds: int
    resumed_from: int
    data: FederatedData
    model: BoundModel
    features: Tensor


class Tracker(Plugin):
    """Nothing but hook implementations. Open files and bars live in private attributes.

    An exception in a tracker disables it with a warning; it never stops a run.
    """
