"""What is said about a plugin that fails: which table configured it, and where its code stands."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from crfl_core.errors import ConfigError, OptionError, failures_named

if TYPE_CHECKING:
    from crfl_core.plugin_api.base import Plugin


@contextmanager
def errors_of(table: str, plugin: Plugin) -> Iterator[None]:
    """Say which table of the config a plugin's complaint is about."""
    try:
        with failures_named(f"{table}: {plugin.full_name} failed"):
            yield
    except OptionError as error:
        raise ConfigError(error.message, key=f"{table}.{error.option}") from error


def function_of(member: Any) -> Any:
    """The plain function inside of a method, a property, or what decorators made of it; None if there is none."""
    inner = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
    return inspect.unwrap(inner) if callable(inner) else None


def source_location(member: Any) -> str:
    """File and line of a method or a class, as far as they are known."""
    code = getattr(function_of(member), "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    try:
        return f"{inspect.getsourcefile(member)}:{inspect.getsourcelines(member)[1]}"
    except (OSError, TypeError):
        return "its source is not known"
