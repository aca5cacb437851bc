"""The base class of each plugin kind, one file per kind, and the table of all kinds."""

from __future__ import annotations

from typing import NamedTuple

from crfl_core.kinds.aggregator import AggregationStep
from crfl_core.kinds.attack import Attack
from crfl_core.kinds.certificate import Certificate
from crfl_core.kinds.dataset import Dataset
from crfl_core.kinds.engine import Engine
from crfl_core.kinds.feature_map import FeatureMap
from crfl_core.kinds.model import Model
from crfl_core.kinds.partitioner import Partitioner
from crfl_core.kinds.plugin import Plugin
from crfl_core.kinds.tracker import Tracker


class Kind(NamedTuple):
    """A kind of plugin: the entry-point group it is found in and the class it derives from."""

    group: str
    base: type[Plugin]


KINDS: dict[str, Kind] = {
    "aggregator": Kind("crfl.aggregators", AggregationStep),
    "attack": Kind("crfl.attacks", Attack),
    "dataset": Kind("crfl.datasets", Dataset),
    "partitioner": Kind("crfl.partitioners", Partitioner),
    "model": Kind("crfl.models", Model),
    "feature-map": Kind("crfl.feature_maps", FeatureMap),
    "certificate": Kind("crfl.certificates", Certificate),
    "engine": Kind("crfl.engines", Engine),
    "tracker": Kind("crfl.trackers", Tracker),
}
