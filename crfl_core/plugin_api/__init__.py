"""The base class of each plugin kind, one file per kind, and the table of all kinds."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pkgutil import resolve_name
from typing import Any, NamedTuple, cast

OWN_DISTRIBUTION = "crfl"
"""The distribution that this code belongs to. Its plugins may always run, so no allow-list needs to name it."""
LOCAL = "(this process)"
"""Origin of plugins that Python code hands over and no distribution declares."""


@cache
def own_packages() -> frozenset[str]:
    """Return the top-level packages that `crfl` ships."""
    try:
        points = distribution(OWN_DISTRIBUTION).entry_points
    except PackageNotFoundError:  # an unpacked source tree has no plugins
        points = ()  # type: ignore[assignment]
    return frozenset({"crfl_core", *(point.module.partition(".")[0] for point in points)})


class PluginKind(NamedTuple):
    """Kind of plugin: the entry-point group that declares it, and the import path of its base class."""

    group: str
    target: str

    @property
    def base(self) -> type[Any]:
        """Return the base class, imported on first use.

        So reading what is installed stays cheap.
        """
        return cast("type[Any]", resolve_name(self.target))

    def includes(self, candidate: object) -> bool:
        """Return whether an object is a plugin class of this kind."""
        return isinstance(candidate, type) and issubclass(candidate, self.base)


KINDS = {
    "aggregator": PluginKind("crfl.aggregators", "crfl_core.plugin_api.aggregator:AggregationStep"),
    "optimiser": PluginKind("crfl.optimisers", "crfl_core.plugin_api.server_optimiser:ServerOptimiser"),
    "attack": PluginKind("crfl.attacks", "crfl_core.plugin_api.attack:Attack"),
    "dataset": PluginKind("crfl.datasets", "crfl_core.plugin_api.dataset:Dataset"),
    "partitioner": PluginKind("crfl.partitioners", "crfl_core.plugin_api.partitioner:Partitioner"),
    "model": PluginKind("crfl.models", "crfl_core.plugin_api.model:Model"),
    "feature-map": PluginKind("crfl.feature_maps", "crfl_core.plugin_api.feature_map:FeatureMap"),
    "algorithm": PluginKind("crfl.algorithms", "crfl_core.plugin_api.local_algorithm:LocalAlgorithm"),
    "certificate": PluginKind("crfl.certificates", "crfl_core.plugin_api.certificate:Certificate"),
    "engine": PluginKind("crfl.engines", "crfl_core.plugin_api.engine:Engine"),
    "tracker": PluginKind("crfl.trackers", "crfl_core.plugin_api.tracker:Tracker"),
    "command": PluginKind("crfl.commands", "crfl_core.plugin_api.command:Command"),
}
"""Every kind of plugin, by its name in messages and in `crfl plugins`."""

CONFIGURABLE = tuple(kind for kind in KINDS if kind != "command")
"""The kinds that a config names: all but commands, which users type."""
