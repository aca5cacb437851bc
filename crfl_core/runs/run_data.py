"""Data of a run: which client holds which samples before training, and the inputs that a finished run was tested on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crfl_core.config import load_config
from crfl_core.errors import DataError
from crfl_core.plugin_loading.registry import Registry
from crfl_core.reporting.metrics import ClassHistogram
from crfl_core.runs.run import locate_errors
from crfl_core.training.data_loading import load_data
from crfl_core.training.federation import build, streams_of

if TYPE_CHECKING:
    from crfl_core.config.loading import ConfigSource
    from crfl_core.plugin_loading.registry import LocalPlugin
    from crfl_core.runs.results import RunResult


def class_histogram(
    config: ConfigSource | None = None,
    *,
    overrides: Sequence[str] = (),
    plugins: Mapping[str, LocalPlugin] | None = None,
) -> ClassHistogram:
    """Count the training samples of each class for every client.

    `partition_figure` draws the result. The arguments are those of `run`. A finished run has its own histogram in
    `metrics.partition`.
    """
    loaded = load_config(config, overrides=overrides, registry=Registry(plugins))
    with locate_errors(loaded):
        data, partition, _ = load_data(loaded.config, streams_of(loaded.config))
    return ClassHistogram.of(data.y, partition.rows, data.class_names, partition.names)


def read_test_inputs(run: RunResult) -> dict[str, NDArray[np.float64]]:
    """Return the scaled inputs of both test sets, (m, inputs).

    The test sets are the clean and the backdoored one, in the order of the votes. The inputs are those before all
    feature maps, where triggers are visible. Loads the data of the run, which executes its dataset and its attack.
    Raises `DataError` if the data differ from those that the run was tested on.
    """
    start = {"trackers": (), "model": run.config.model.model_copy(update={"start": None})}
    federation = build(run.config.model_copy(update=start).with_own_plugins(), fitted=run.fitted)
    for name, expected in run.ledger.facts.test_sets.items():
        found = federation.test_sets.get(name)
        if found is None or found.facts != expected:
            raise DataError(f"{run.path}: the {name} test set is not the one that this run was tested on: restore it")
    inputs = {"clean": federation.data.test_x}
    if federation.config.attack is not None:
        backdoored = federation.config.attack.backdoor_test_set(federation.data, federation.prepared)
        if backdoored is not None:
            inputs["backdoored"] = backdoored[0]
    return {name: x.cpu().numpy().astype(np.float64) for name, x in inputs.items()}
