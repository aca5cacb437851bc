"""Plugins whose base class says what they may look at."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from crfl_core.errors import PluginError
from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.plugin_errors import written_at
from crfl_core.records.round import Dependence


class Dependent(Plugin):
    """A plugin that changes what clients weigh. On what that `depends` follows from its base class."""

    depends: ClassVar[Dependence] = "all"
    instead: ClassVar[str]
    """The base classes to derive from for another dependence."""

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        cls.check_dependence()

    @classmethod
    def check_dependence(cls) -> None:
        """Raise `PluginError` if the class says of itself what follows from its base, or watches what it must not see.

        What counts is what an instance would find, whoever wrote it: the class, a mixin, or a later assignment.
        """
        base = next(base for base in cls.__mro__ if base.__module__.startswith("crfl_core.plugin_api."))
        depends = inspect.getattr_static(cls, "depends")
        if depends is not inspect.getattr_static(base, "depends") or "depends" in cls.model_fields:
            raise PluginError(
                f"{cls.__qualname__} ({written_at(cls)}) sets `depends`, which follows from the base class: derive "
                f"from {cls.instead}, or leave it out"
            )
        hooks = [name for name in dir(cls) if hasattr(inspect.getattr_static(cls, name), "crfl_impl")]
        if hooks and depends != "all":
            raise PluginError(
                f"{cls.__qualname__} has the hook {hooks[0]} ({written_at(inspect.getattr_static(cls, hooks[0]))}), "
                "but a step that must not depend on the updates cannot watch the run: put the hook into a tracker"
            )
