"""One check of one plugin, and what it says."""

from __future__ import annotations

from crfl_core.extend import Plugin
from crfl_core.plugin_api.command import Command
from crfl_core.testing import Search, promises_of
from crfl_core.testing.suite import PROMISES, Case, run_check


def verdict(plugin: Plugin | Command, check: str, search: Search | None = None) -> tuple[str, str]:
    """Status and message of one check."""
    (promise,) = (promise for promise in promises_of(type(plugin)) if promise.name == check)
    return run_check(promise, Case(plugin, search), None)


def assert_fails(plugin: Plugin | Command, check: str, *words: str, search: Search | None = None) -> None:
    """Assert that the check fails, and tells the author what was expected, what was found and what to fix."""
    status, message = verdict(plugin, check, search)
    assert status == "failed", f"{check} {status}: {message}"
    assert "expected " in message
    assert "; found " in message
    assert ". To fix it: " in message
    for word in words:
        assert word in message, message


def checks_of(*bases: type[Plugin | Command]) -> set[str]:
    """Return the names of the checks that are made for just these classes."""
    return {promise.name for promise in PROMISES if promise.base in bases}
