"""Plugins that a run used and that are not here: what is said about them when its config is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from crfl_core.errors import PluginError
from crfl_core.plugin_api import LOCAL
from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_loading.registry import Registry
from crfl_core.plugin_loading.stand_ins import stand_in


class Requirement(NamedTuple):
    """The distribution and version that a run took a plugin from."""

    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution}=={self.version}" if self.version else self.distribution


Used = Mapping[tuple[str, str], Requirement]
"""Where a run took its plugins from, by kind and name."""


class Reading:
    """The plugins of a config that is read and not run: one that cannot be loaded is replaced by a `StandIn`.

    Plugins of a kind that is `needed` are an error instead. `used` says where the run took its plugins from, so that
    what is missing can be named with its version.
    """

    def __init__(self, registry: Registry, used: Used | None = None, needed: Collection[str] = ()) -> None:
        self._registry = registry
        self._used = used or {}
        self._needed = needed

    def allowing(self, entries: Sequence[str] | None) -> Reading:
        """The same with an allow-list, as of a `Registry`."""
        return Reading(self._registry.allowing(entries), self._used, self._needed)

    def needing(self, kinds: Collection[str]) -> Reading:
        """The same, in which plugins of these kinds must be there."""
        return Reading(self._registry, self._used, kinds)

    def load(self, kind: str, name: str) -> type[Plugin]:
        """The class that a name stands for, or a stand-in."""
        try:
            return self._registry.load(kind, name)
        except PluginError as error:
            sentence = self._absence(kind, name, error)
            if kind in self._needed:
                raise PluginError(sentence) from error
            return stand_in(kind, sentence)

    def name_of(self, kind: str, plugin: type[Plugin]) -> str:
        """The name under which a class is registered. Raises `PluginError`."""
        return self._registry.name_of(kind, plugin)

    def origin(self, kind: str, name: str) -> str:
        """Distribution and version that a name stands for, or stood for when the run was made."""
        try:
            return self._registry.origin(kind, name)
        except PluginError:
            used = self._used.get((kind, name))
            return f"{used.distribution} {used.version}".strip() if used else "a package that is not installed"

    def import_refusal(self, path: str) -> str:
        """Why code that an option names must not be imported, as of a `Registry`."""
        return self._registry.import_refusal(path)

    def _absence(self, kind: str, name: str, error: PluginError) -> str:
        used, (distribution, _, bare) = self._used.get((kind, name)), name.rpartition(":")
        if used is None:
            return f"{error}; pip install {distribution}" if distribution else str(error)
        if used.distribution == LOCAL:
            return f"{kind} {name!r} was a class of the program that made the run: give it as plugins={{{name!r}: ...}}"
        here = self._registry.found[kind].get(bare, [])
        if here and not any(map(self._registry.usable, here)):
            return str(error)
        if here:  # and cannot be used
            return f"{error}; the run used {used.distribution} {used.version}: pip install {used}"
        return f"{kind} {name!r} is not installed: pip install {used}"
