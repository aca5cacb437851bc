"""The inputs that a finished run was tested on, for people who want to see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import DataError
from crfl_core.training.federation import build

if TYPE_CHECKING:
    from crfl_core.runs.results import RunResult


def tested_inputs(run: RunResult) -> dict[str, NDArray[np.float64]]:
    """The scaled inputs of the clean and of the backdoored test set, (m, inputs), in the order of their votes.

    They are those in front of all feature maps, where triggers are seen. Loads the data of the run, which runs its
    dataset and its attack, and refuses data that are not what it was tested on with a `DataError`.
    """
    start = {"trackers": (), "model": run.config.model.model_copy(update={"start": None})}
    federation = build(run.config.model_copy(update=start).with_own_plugins(), fitted=run.fitted)
    for name, expected in run.ledger.facts.test_sets.items():
        found = federation.test_sets.get(name)
        if found is None or found.facts != expected:
            raise DataError(f"{run.path}: the {name} test set is not the one that this run was tested on: restore it")
    inputs = {"clean": federation.data.test_x}
    if federation.attack is not None:
        backdoored = federation.attack.backdoored_set(federation.data, federation.prepared)
        if backdoored is not None:
            inputs["backdoored"] = backdoored[0]
    return {name: x.cpu().numpy().astype(np.float64) for name, x in inputs.items()}
