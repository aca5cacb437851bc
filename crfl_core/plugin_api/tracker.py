"""Trackers: plugins that observe a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.model import BoundModel
from crfl_core.records.inputs import FederatedData, held, made_when_asked

if TYPE_CHECKING:
    from torch import Tensor


@made_when_asked("features")
@dataclass(frozen=True)
class RunContext:
    """Description of a run for its hooks. `resumed_from` is the last finished round, 0 for a new run.

    `features` are the training inputs `data.x` as the model sees them, behind its feature maps. Without maps they may
    be kept as bytes, of which they are made whenever they are asked for; `features_of` makes no more than some rows.
    """

    name: str
    path: Path
    rounds: int
    resumed_from: int
    data: FederatedData
    model: BoundModel
    features: Tensor

    def features_of(self, rows: Tensor | slice) -> Tensor:
        """Return some rows of `features`, by row numbers, a mask or a slice."""
        some: Tensor = held(self, "features")[rows]
        return some


class Tracker(Plugin):
    """Observer of a run through hooks. Open files and progress bars live in private attributes.

    An exception in a tracker disables it with a warning; it never stops a run.
    """
