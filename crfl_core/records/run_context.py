"""Description of a run for its hooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from crfl_core.records.inputs import as_floats

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from crfl_core.plugin_api.model import BoundModel
    from crfl_core.records.input_rows import Rows
    from crfl_core.records.inputs import FederatedData


@dataclass(frozen=True)
class RunContext:
    """Description of a run for its hooks. `resumed_from` is the last finished round, 0 for a new run.

    `feature_rows` are the training inputs as the model sees them, behind its feature maps, as they are kept: floats,
    or without maps the bytes that they came as. Every read of `features` converts all bytes to floats; `features_of`
    converts no more than some rows.
    """

    name: str
    path: Path
    rounds: int
    resumed_from: int
    data: FederatedData
    model: BoundModel
    feature_rows: Rows

    @property
    def features(self) -> Tensor:
        """Return the model's view of all training inputs, (m, features).

        The inputs are floats.
        """
        floats: Tensor = as_floats(self.feature_rows)
        return floats

    def features_of(self, rows: Tensor | slice) -> Tensor:
        """Return some rows of `features`.

        They are chosen by row numbers, a mask or a slice.
        """
        return self.feature_rows[rows]
