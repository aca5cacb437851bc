"""What stands in for a plugin that is not here: it keeps a config readable, and does nothing."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NoReturn

from pydantic import ConfigDict

from crfl_core.errors import PluginError
from crfl_core.plugin_api import KINDS
from crfl_core.plugin_api.aggregator import Aggregator, Stage
from crfl_core.plugin_api.base import Plugin

KEPT = ("features", "start", "name")
"""Options of base classes that the core itself reads from a config: feature maps and start of a model, the name of a
certificate. What the others may be, only the missing class knows."""
HARMLESS = ("wanted_stages",)
"""Methods that are asked while a config is read; the default of the base class asks for nothing."""


class StandIn(Plugin):
    """Keeps the name and the options of a plugin that is not here, and says what to install when it is used."""

    absence: ClassVar[str]

    def model_dump(self, **settings: Any) -> dict[str, Any]:
        """Only what was written: the defaults of the missing class are not known."""
        return super().model_dump(**settings | {"exclude_unset": True})


def stand_in(kind: str, sentence: str) -> type[StandIn]:
    """A class of a kind that takes any options. Whatever it is asked to do, it raises `PluginError`: the sentence."""
    bases: tuple[type[Plugin], ...] = (Stage, Aggregator) if kind == "aggregator" else (KINDS[kind].base,)
    options = {name: field for base in bases for name, field in base.model_fields.items() if name not in KEPT}
    namespace = {
        "__module__": __name__,
        "__annotations__": dict.fromkeys(options, Any),
        "model_config": ConfigDict(extra="allow"),
    }
    namespace |= {name: field.get_default() for name, field in options.items()}
    plugin: type[StandIn] = types.new_class("Absent", (StandIn, *bases), {}, lambda body: body.update(namespace))
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


def absences(plugins: Iterable[tuple[str, Plugin]]) -> tuple[str, ...]:
    """What is to be said about those of a config's plugins that are not here, once each."""
    return tuple({plugin.absence: None for _, plugin in plugins if isinstance(plugin, StandIn)})
