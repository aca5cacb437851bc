"""Methods that no plugin may replace, because certificates rest on what they do."""

from __future__ import annotations

import inspect
from typing import Any

from crfl_core.errors import PluginError
from crfl_core.plugin_api.plugin_errors import function_of, written_at


def refuse_overriding(plugin: type, root: type) -> None:
    """Raise `PluginError` if a class replaces a method that `typing.final` marks in one of its bases below `root`.

    It counts what an instance would find: a method, one of a mixin, or an option of the same name.
    """
    options = inspect.get_annotations(plugin)
    for base in plugin.__mro__:
        if base is plugin or not issubclass(base, root):
            continue
        for name, member in vars(base).items():
            if not is_final(member):
                continue
            found = inspect.getattr_static(plugin, name)
            if name in options or found is not member:
                place = written_at(plugin if name in options else found)
                raise PluginError(
                    f"{plugin.__qualname__}.{name} ({place}) replaces {base.__qualname__}.{name}, which is final: "
                    f"{instead(base)}"
                )


def is_final(member: Any) -> bool:
    """Whether `typing.final` marks a method, in whichever order with `property`, `classmethod` or `staticmethod`."""
    return getattr(member, "__final__", False) or getattr(function_of(member), "__final__", False)


def instead(base: type) -> str:
    """What is there to be implemented in a class with final methods."""
    free = sorted(getattr(base, "__abstractmethods__", ())) or [
        name for name, member in vars(base).items() if inspect.isfunction(member) and not is_final(member)
    ]
    public = [name for name in free if not name.startswith(("_", "model_"))]
    return f"implement {' or '.join(public)} instead" if public else "derive from another class"
