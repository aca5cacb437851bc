"""Messages about plugins that fail: the config table that names the plugin, and the place of its code."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from crfl_core.errors import (
    UNEXPECTED_EXCEPTIONS,
    ConfigError,
    CrflError,
    OptionError,
    PluginFailure,
    describe_exception,
)

if TYPE_CHECKING:
    from crfl_core.plugin_api.base import Plugin


@contextmanager
def errors_of(table: str, plugin: Plugin) -> Iterator[None]:
    """Name the config table and the plugin in the plugin's errors."""
    try:
        yield
    except OptionError as error:
        raise ConfigError(error.message, key=f"{table}.{error.option}") from error
    except CrflError:
        raise
    except UNEXPECTED_EXCEPTIONS as error:
        raise PluginFailure(f"{table}: {plugin.full_name} failed: {describe_exception(error)}") from error


class PluginMethod(NamedTuple):
    """Method of a plugin as messages name it; the text is made only if there is a message.

    `kind` is what the plugin is, such as "aggregator".
    """

    kind: str
    plugin: Plugin
    method: str

    def __str__(self) -> str:
        """Return the kind, the plugin, the method, its file and line."""
        place = source_location(getattr(self.plugin, self.method))
        return f"{self.kind} {self.plugin.full_name}: {self.method}() ({place})"


@contextmanager
def method_errors(who: PluginMethod) -> Iterator[None]:
    """Name the plugin and its method in unexpected exceptions.

    A `CrflError` passes unchanged.
    """
    try:
        yield
    except CrflError:
        raise
    except UNEXPECTED_EXCEPTIONS as error:
        raise PluginFailure(
            f"{who.kind} {who.plugin.full_name} failed in {who.method}: {describe_exception(error)}"
        ) from error


def function_of(member: Any) -> Any:
    """Return the plain function inside a method, property or decorated function.

    None if there is none.
    """
    inner = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
    return inspect.unwrap(inner) if callable(inner) else None


def source_location(member: Any) -> str:
    """Return file and line of a method or class, if known."""
    code = getattr(function_of(member), "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    try:
        return f"{inspect.getsourcefile(member)}:{inspect.getsourcelines(member)[1]}"
    except (OSError, TypeError):
        return "its source is not known"
