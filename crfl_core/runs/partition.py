"""Who would hold what, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crfl_core.config import load_config
from crfl_core.config.loading import ConfigSource
from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_loading.registry import Registry
from crfl_core.reporting.metrics import ClassHistogram
from crfl_core.runs.run import located
from crfl_core.training.data_loading import load_data
from crfl_core.training.federation import streams_of


def class_histogram(
    config: ConfigSource | None = None,
    *,
    overrides: Sequence[str] = (),
    plugins: Mapping[str, type[Plugin]] | None = None,
) -> ClassHistogram:
    """How many training samples of each class every client of a config holds. `partition_figure` draws it.

    The arguments are those of `run`. A finished run has its own in `metrics.partition`.
    """
    loaded = load_config(config, overrides=overrides, registry=Registry(plugins))
    with located(loaded):
        data, partition, _ = load_data(loaded.config, streams_of(loaded.config))
    return ClassHistogram.of(data.y, partition.rows, data.class_names, partition.names)
