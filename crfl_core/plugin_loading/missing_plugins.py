"""Plugins that a config names and that are not installed.

A config that is only read keeps them as `MissingPlugin`, with their names and options. Any use says what to install.
"""

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

KEPT_OPTIONS = ("features", "start", "name")
"""Options of base classes that the core itself reads from a config: feature maps and start of a model, the name of a
certificate. Only the missing class knows what the others may be."""
HARMLESS_METHODS = ("stages_to_add",)
"""Methods that are called while a config is read; the default of the base class adds nothing."""


class Requirement(NamedTuple):
    """Distribution and version that a run took a plugin from."""

    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution}=={self.version}" if self.version else self.distribution


Used = Mapping[tuple[str, str], Requirement]
"""Origins of the plugins of a run, by kind and name."""


class MissingPlugin(Plugin):
    """Plugin that is not installed: keeps its name and options, and says what to install when it is used."""

    absence: ClassVar[str]

    def model_dump(self, **settings: Any) -> dict[str, Any]:
        """Return only the options that were written.

        The defaults of the missing class are not known.
        """
        return super().model_dump(**settings | {"exclude_unset": True})


def missing_plugin_class(kind: str, sentence: str) -> type[MissingPlugin]:
    """Return a class that stands for a missing plugin of a kind.

    It takes any options, and raises `PluginError(sentence)` when used.
    """
    bases: tuple[type[Plugin], ...] = (Stage, Aggregator) if kind == "aggregator" else (KINDS[kind].base,)
    options = {name: field for base in bases for name, field in base.model_fields.items() if name not in KEPT_OPTIONS}
    namespace = {
        "__module__": __name__,
        "__annotations__": dict.fromkeys(options, Any),
        "model_config": ConfigDict(extra="allow"),
    }
    namespace |= {name: field.get_default() for name, field in options.items()}
    plugin: type[MissingPlugin] = types.new_class(
        "Absent", (MissingPlugin, *bases), {}, lambda body: body.update(namespace)
    )
    for name in method_names(bases):
        if inspect.isfunction(inspect.getattr_static(plugin, name)):
            setattr(plugin, name, raising_method(sentence))  # not in the namespace: some of them are final
    plugin.absence = sentence
    plugin.__abstractmethods__ = frozenset()
    return plugin


def method_names(bases: Iterable[type[Plugin]]) -> set[str]:
    """Return the public names that base classes add to `Plugin`.

    Harmless methods are left out.
    """
    names = {name for base in bases for part in base.__mro__ if part not in Plugin.__mro__ for name in vars(part)}
    return {name for name in names if name not in HARMLESS_METHODS and not name.startswith(("_", "model_"))}


def raising_method(sentence: str) -> Callable[..., NoReturn]:
    """Return a method that raises `PluginError(sentence)`."""

    def method(*_: object, **__: object) -> NoReturn:
        raise PluginError(sentence)

    return method


def missing_plugin_messages(plugins: Iterable[tuple[str, Plugin]]) -> tuple[str, ...]:
    """Return what to install for the missing plugins.

    They are the plugins of a config. Each sentence appears once.
    """
    return tuple({plugin.absence: None for _, plugin in plugins if isinstance(plugin, MissingPlugin)})


class LenientRegistry:
    """Registry for a config that is read and not run: a plugin that cannot be loaded becomes a `MissingPlugin`.

    Plugins of a kind that is `needed` are an error instead. `used` says where the run took its plugins from, so that
    the message can name the version to install.
    """

    def __init__(self, registry: Registry, used: Used | None = None, needed: Collection[str] = ()) -> None:
        self._registry = registry
        self._used = used or {}
        self._needed = needed

    def with_allow_list(self, entries: Sequence[str] | None) -> LenientRegistry:
        """Return the same with an allow-list, as of a `Registry`."""
        return LenientRegistry(self._registry.with_allow_list(entries), self._used, self._needed)

    def needing(self, kinds: Collection[str]) -> LenientRegistry:
        """Return the same, in which plugins of these kinds must be installed."""
        return LenientRegistry(self._registry, self._used, kinds)

    def load(self, kind: str, name: str) -> type[Plugin]:
        """Return the class that a name stands for, or a `MissingPlugin`."""
        try:
            return self._registry.load(kind, name)
        except PluginError as error:
            sentence = self._absence_message(kind, name, error)
            if kind in self._needed:
                raise PluginError(sentence) from error
            return missing_plugin_class(kind, sentence)

    def name_of(self, kind: str, plugin: type[Plugin]) -> str:
        """Return the name under which a class is registered. Raises `PluginError`."""
        return self._registry.name_of(kind, plugin)

    def origin(self, kind: str, name: str) -> str:
        """Return distribution and version behind a name.

        If it is missing, they are those when the run was made.
        """
        try:
            return self._registry.origin(kind, name)
        except PluginError:
            used = self._used.get((kind, name))
            return f"{used.distribution} {used.version}".strip() if used else "a package that is not installed"

    def default_name(self, kind: str, name: str) -> str:
        """Return the name of crfl's own plugin, as a `Registry` does."""
        return self._registry.default_name(kind, name)

    def import_refusal(self, path: str) -> str:
        """Return why an option must not import code, as of a `Registry`."""
        return self._registry.import_refusal(path)

    def _absence_message(self, kind: str, name: str, error: PluginError) -> str:
        used = self._used.get((kind, name))
        distribution, _, bare = name.rpartition(":")
        if used is None:
            return f"{error}; pip install {distribution}" if distribution else str(error)
        if used.distribution == LOCAL:
            return f"{kind} {name!r} was a class of the program that made the run: give it as plugins={{{name!r}: ...}}"
        installed = self._registry.found[kind].get(bare, [])
        if not installed:
            return f"{kind} {name!r} is not installed: pip install {used}"
        if not any(map(self._registry.is_usable, installed)):
            return str(error)
        return f"{error}; the run used {used.distribution} {used.version}: pip install {used}"
