"""Plugins that a run used and that are not here: what is said about them when its config is read."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, NoReturn

from pydantic import ConfigDict

from crfl_core.errors import PluginError
from crfl_core.plugin_api import KINDS, LOCAL
from crfl_core.plugin_api.aggregator import Aggregator, Stage
from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_loading.registry import Registry


class Requirement(NamedTuple):
    """The distribution and version that a run took a plugin from."""

    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution}=={self.version}" if self.version else self.distribution


Used = Mapping[tuple[str, str], Requirement]
"""Where a run took its plugins from, by kind and name."""


class LenientRegistry:
    """The plugins of a config that is read and not run: one that cannot be loaded is replaced by a `MissingPlugin`.

    Plugins of a kind that is `needed` are an error instead. `used` says where the run took its plugins from, so that
    what is missing can be named with its version.
    """

    def __init__(self, registry: Registry, used: Used | None = None, needed: Collection[str] = ()) -> None:
        self._registry = registry
        self._used = used or {}
        self._needed = needed

    def with_allow_list(self, entries: Sequence[str] | None) -> LenientRegistry:
        """The same with an allow-list, as of a `Registry`."""
        return LenientRegistry(self._registry.with_allow_list(entries), self._used, self._needed)

    def needing(self, kinds: Collection[str]) -> LenientRegistry:
        """The same, in which plugins of these kinds must be there."""
        return LenientRegistry(self._registry, self._used, kinds)

    def load(self, kind: str, name: str) -> type[Plugin]:
        """The class that a name stands for, or a stand-in."""
        try:
            return self._registry.load(kind, name)
        except PluginError as error:
            sentence = self._absence(kind, name, error)
            if kind in self._needed:
                raise PluginError(sentence) from error
            return missing_plugin_class(kind, sentence)

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
        if here and not any(map(self._registry.is_usable, here)):
            return str(error)
        if here:  # and cannot be used
            return f"{error}; the run used {used.distribution} {used.version}: pip install {used}"
        return f"{kind} {name!r} is not installed: pip install {used}"


KEPT = ("features", "start", "name")
"""Options of base classes that the core itself reads from a config: feature maps and start of a model, the name of a
certificate. What the others may be, only the missing class knows."""
HARMLESS = ("stages_to_add",)
"""Methods that are asked while a config is read; the default of the base class asks for nothing."""


class MissingPlugin(Plugin):
    """Keeps the name and the options of a plugin that is not here, and says what to install when it is used."""

    absence: ClassVar[str]

    def model_dump(self, **settings: Any) -> dict[str, Any]:
        """Only what was written: the defaults of the missing class are not known."""
        return super().model_dump(**settings | {"exclude_unset": True})


def missing_plugin_class(kind: str, sentence: str) -> type[MissingPlugin]:
    """A class of a kind that takes any options. Whatever it is asked to do, it raises `PluginError`: the sentence."""
    bases: tuple[type[Plugin], ...] = (Stage, Aggregator) if kind == "aggregator" else (KINDS[kind].base,)
    options = {name: field for base in bases for name, field in base.model_fields.items() if name not in KEPT}
    namespace = {
        "__module__": __name__,
        "__annotations__": dict.fromkeys(options, Any),
        "model_config": ConfigDict(extra="allow"),
    }
    namespace |= {name: field.get_default() for name, field in options.items()}
    plugin: type[MissingPlugin] = types.new_class(
        "Absent", (MissingPlugin, *bases), {}, lambda body: body.update(namespace)
    )
    for name in {name for base in bases for part in base.__mro__ if part not in Plugin.__mro__ for name in vars(part)}:
        member = inspect.getattr_static(plugin, name)
        if inspect.isfunction(member) and name not in HARMLESS and not name.startswith(("_", "model_")):
            setattr(plugin, name, raising(sentence))  # not in the namespace: some of them are final
    plugin.absence = sentence
    plugin.__abstractmethods__ = frozenset()
    return plugin


def raising(sentence: str) -> Callable[..., NoReturn]:
    """A method that has nothing to say but this."""

    def method(*_: object, **__: object) -> NoReturn:
        raise PluginError(sentence)

    return method


def missing_plugin_messages(plugins: Iterable[tuple[str, Plugin]]) -> tuple[str, ...]:
    """What is to be said about those of a config's plugins that are not here, once each."""
    return tuple({plugin.absence: None for _, plugin in plugins if isinstance(plugin, MissingPlugin)})
